"""What to do about a text that kills workers: find it, try it again, and set it aside.

What lives here: the rules, for one shard, without processes. What does not: starting workers
(``local``, ``ray``).

A death is blamed on the texts that were at work. Several at once are tried one by one; a text
that dies alone gets a strike, and is set aside at its third. Texts that three times die in company
only are worked on alone for good. Whatever happens, every text ends in the results or in the errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attnviz.errors import ResourceError
from attnviz.runs.batch.jobs import Job

STRIKES = 3


class Case:
    """One shard on its way through workers that may die.

    Parameters
    ----------
    job
        The shard as it was asked for.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.lost: dict[int, str] = dict(job.lost)
        self.strikes: dict[int, int] = {}
        self._alone: set[int] = set(job.alone)
        self._suspects: list[int] = []
        self._died_together: dict[int, int] = {}
        self._unexplained = 0
        self.is_suspected = False
        """For engines that do not know which text a worker was at: a first death is forgiven."""

    def next_job(self) -> Job:
        """Return what to try next: a suspect alone, or the whole shard."""
        if self._suspects:
            rows = tuple(row for row in self.job.rows if row.number == self._suspects[0])
            return replace(self.job, rows=rows, is_trial=True, alone=frozenset(self._suspects[:1]))
        return replace(self.job, lost=dict(self.lost), alone=frozenset(self._alone))

    def survived(self) -> bool:
        """Note that the last job came back; True where the shard is complete."""
        if not self._suspects:
            return True
        self._suspects.pop(0)
        return False

    def died(self, texts: Sequence[int], why: str) -> None:
        """Note that a worker died over some texts of the last job.

        Raises
        ------
        ResourceError
            Workers die again and again without a text being at work.
        """
        if not texts:
            self._unexplained += 1
            if self._unexplained >= STRIKES:
                raise ResourceError(
                    f"{STRIKES} workers died between texts ({why}): is there enough memory? try "
                    "fewer --workers or a smaller --shard-size"
                )
            return
        if len(texts) > 1:
            for text in texts:
                self._died_together[text] = self._died_together.get(text, 0) + 1
            if max(self._died_together[text] for text in texts) >= STRIKES:
                self._alone.update(texts)
            self._suspects = list(texts)
            return
        text = texts[0]
        self.strikes[text] = self.strikes.get(text, 0) + 1
        is_first = self._suspects[:1] == [text]
        if self.strikes[text] >= STRIKES:
            self.lost[text] = f"killed {STRIKES} workers ({why})"
            if is_first:
                self._suspects.pop(0)
        elif not is_first:
            self._suspects = [text]
