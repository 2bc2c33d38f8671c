"""The folder of a batch: shards published whole, a record of each, one writer at a time.

What lives here: the protocol that makes a batch exactly-once. A shard's files are written under a
temporary name, flushed, moved into place, then its record ``shards/N.json`` likewise: only the
record makes it count. A run killed at any moment leaves whole files and records, or temporary
names that the next run removes; what has no record is done again and gives the same bytes.
What does not: what is in the files (``tables``), the order of work (``batch``).

::

    DIR/manifest.json           what was asked for
    DIR/heads/000000.parquet    a row per text, layer and head
    DIR/texts/000000.parquet    a row per text
    DIR/arrays/000000.npz       with --keep
    DIR/heatmaps/…              with --heatmap
    DIR/shards/000000.json      shard 0 is complete
    DIR/errors.jsonl            every text that failed, once all shards are complete
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from attnviz.errors import InputError, UsageError
from attnviz.runs.batch import manifest as manifests
from attnviz.runs.batch.jobs import Result, from_plain
from attnviz.runs.batch.lock import Lock
from attnviz.runs.store import explain_fault, make_folder, write_atomic

SCHEMA = "attnviz.shard/1"
ERRORS = "errors.jsonl"
_TEMPORARY = ".attnviz-"
_LOCK = ".lock"
_PARTS = ("heads", "texts", "arrays", "heatmaps", "shards")
_SAFE = re.compile(r"[a-z]+/[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


class Folder:
    """The folder of one batch, held by one writer.

    Parameters
    ----------
    path
        Made if it is not there.
    share
        (i, n): this writer does shards i, i + n, … and shares the folder with the others.
    """

    def __init__(self, path: str | os.PathLike[str], *, share: tuple[int, int] = (0, 1)) -> None:
        self.path, self.share = Path(path), share
        self._locks: list[Lock] = []

    def __enter__(self) -> Folder:
        """Make the folder and hold it.

        Raises
        ------
        UsageError
            Another process writes to it, or it holds something else.
        InputError, ResourceError
            It cannot be made.
        """
        make_folder(self.path)
        self._refuse_foreign()
        index, count = self.share
        try:
            whole = Lock(self.path / _LOCK)
            if not whole.hold(shared=count > 1):
                raise UsageError(
                    f"{self.path} is being written by another attnviz batch{whole.holder()}: wait for "
                    "it, or choose another folder"
                )
            self._locks.append(whole)
            if count > 1:
                own = Lock(self.path / f"{_LOCK}-{index}-{count}")
                if not own.hold():
                    raise UsageError(
                        f"--shard {index}/{count} of {self.path} is being written by another "
                        f"attnviz batch{own.holder()}: wait for it"
                    )
                self._locks.append(own)
            else:
                self._clean()
        except OSError as fault:
            self._release()
            raise explain_fault(self.path, fault) from fault
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._release()

    def _release(self) -> None:
        for lock in reversed(self._locks):
            lock.release()
        self._locks.clear()

    def _refuse_foreign(self) -> None:
        """Keep away from a folder that holds anything but a batch."""
        try:
            names = os.listdir(self.path)
        except OSError as fault:
            raise explain_fault(self.path, fault) from fault
        ours = (_LOCK, _TEMPORARY)
        others = sorted(name for name in names if not name.startswith(ours))
        if others and manifests.NAME not in others:
            raise UsageError(
                f"{self.path} holds other files ({others[0]!r}) and no batch: choose a new folder"
            )

    def _clean(self) -> None:
        """Remove what a killed run left under temporary names."""
        for folder in (self.path, *(self.path / part for part in _PARTS)):
            if not folder.is_dir():
                continue
            for entry in os.scandir(folder):
                if entry.name.startswith(_TEMPORARY) and entry.is_file(follow_symlinks=False):
                    os.unlink(entry.path)

    # -- the manifest -----------------------------------------------------------------------

    def settle(self, wanted: Mapping[str, Any]) -> bool:
        """Write the manifest, or make sure that the one there says the same.

        Returns
        -------
        bool
            True where a run is continued.

        Raises
        ------
        UsageError
            The folder holds another batch; what differs is named.
        """
        held = read_manifest(self.path, missing_ok=True)
        if held is not None:
            manifests.refuse_other(held, json.loads(manifests.dump(wanted)), folder=str(self.path))
        else:
            write_atomic(self.path / manifests.NAME, manifests.dump(wanted), force=True)
        for part in _PARTS:
            if part in ("heads", "texts", "shards") or wanted["settings"].get(_option_of(part)):
                make_folder(self.path / part)
        return held is not None

    # -- shards -----------------------------------------------------------------------------

    def record(self, shard: int) -> Result | None:
        """Return the record of a complete shard whose files are there with their sizes."""
        return read_record(self.path, shard)

    def commit(self, result: Result) -> Result:
        """Publish a shard: its files, then its record.

        Raises
        ------
        ResourceError, InputError
            Disk full, input/output error, folder gone or not writable.
        """
        listed = {}
        for name, data in result.files.items():
            assert _SAFE.fullmatch(name), name
            write_atomic(self.path / name, data, force=True)
            listed[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        record = replace(result, files=listed)
        found = {"schema": SCHEMA, **asdict(record)}
        data = (json.dumps(found, indent=1, ensure_ascii=False) + "\n").encode(errors="replace")
        write_atomic(self.path / record_name(result.shard), data, force=True)
        return record

    def finish(self, n_shards: int) -> bool:
        """Write ``errors.jsonl`` once every shard is complete; False where some are not."""
        if any(self.record(shard) is None for shard in range(n_shards)):
            return False

        def lines() -> Iterator[bytes]:
            for shard in range(n_shards):
                record = self.record(shard)
                for error in record.errors if record else ():
                    yield (json.dumps(error, ensure_ascii=False) + "\n").encode(errors="replace")

        place = self.path / ERRORS
        write_atomic(place, lambda file: file.writelines(lines()), force=True)
        return True


def record_name(shard: int) -> str:
    """Return the relative name of a shard's record.

    Examples
    --------
    >>> record_name(12)
    'shards/000012.json'
    """
    return f"shards/{shard:06d}.json"


def read_manifest(folder: Path, *, missing_ok: bool = False) -> dict[str, Any] | None:
    """Read a folder's manifest.

    Raises
    ------
    InputError
        None there (unless ``missing_ok``), or not one.
    """
    try:
        data = (folder / manifests.NAME).read_bytes()
    except FileNotFoundError:
        if missing_ok:
            return None
        raise InputError(f"{folder} holds no batch: there is no {manifests.NAME} in it") from None
    except OSError as fault:
        raise explain_fault(folder, fault) from fault
    return manifests.load(data, folder=str(folder))


def read_record(folder: Path, shard: int) -> Result | None:
    """Read a shard's record; None where it is missing, damaged, or its files are not as it says."""
    try:
        found = json.loads((folder / record_name(shard)).read_bytes())
        for name, facts in found["files"].items():
            if not _SAFE.fullmatch(name):
                return None
            held = os.lstat(folder / name)
            if not stat.S_ISREG(held.st_mode) or held.st_size != facts["bytes"]:
                return None
        if found.pop("schema") != SCHEMA:
            return None
        record: Result = from_plain(Result, found)
        return record
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def free_bytes(folder: Path) -> int:
    """Return the free space of the disk a folder is, or would be, on."""
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return shutil.disk_usage(place).free


def _option_of(part: str) -> str:
    return {"arrays": "keep", "heatmaps": "heatmap"}.get(part, part)
