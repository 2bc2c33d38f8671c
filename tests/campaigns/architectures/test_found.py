"""What the campaigns found is what docs/models.md says, and nothing of it is wrong."""

from __future__ import annotations

import re
from importlib.metadata import version

import keep
import pytest

FOUND = keep.kept()


def test_the_table_in_the_docs_is_that_of_what_was_found() -> None:
    text = keep.DOCS.read_text(encoding="utf-8")
    shown = text.partition(keep.START)[2].partition(keep.END)[0]
    assert shown.strip() == keep.table(FOUND), "python tests/campaigns/architectures/keep.py"


def test_no_architecture_is_silently_wrong_or_without_an_answer_of_ours() -> None:
    found = FOUND["architectures"]
    assert {one["outcome"] for one in found.values()} <= {"exact", "refused", "not built"}
    exact = [one for one in found.values() if one["outcome"] == "exact"]
    assert len(exact) >= 300
    assert all(one.get("weights", 0.0) <= 2e-6 or one["large_score"] for one in exact)
    assert all(one["why"] for one in found.values() if one["outcome"] == "refused")
    together = [one for one in exact if one.get("passes") in ("packed", "padded")]
    assert len(together) >= 80
    assert all(one.get("together", 0.0) <= 1e-5 for one in together)


def test_every_change_to_sixty_folders_changes_the_answer_as_the_original_or_is_refused() -> None:
    accounts = FOUND["accounts"]
    assert len(accounts) >= 60
    assert not [name for name, one in accounts.items() if one.get("faults")]
    kinds = ("tensor renamed", "tensor added", "setting")
    assert all(one["counts"].keys() >= set(kinds) for one in accounts.values())
    assert sum("light setting" in one["counts"] for one in accounts.values()) >= 20


def test_a_refusal_is_told_without_one_model_s_numbers() -> None:
    said = "m cannot be read exactly: a.b attends from 6 to 12 positions, where the text has 12 tokens: which token"
    assert keep._fact(said) == "a layer attends from n to n positions, where the text has n tokens"


def test_the_library_that_was_swept_is_the_one_that_is_pinned() -> None:
    pinned = re.findall(
        r"^transformers==(.*)$", (keep.DOCS.parents[1] / "constraints.txt").read_text(), re.M
    )
    assert pinned == [FOUND["transformers"]]
    if version("transformers") == FOUND["transformers"]:
        transformers = pytest.importorskip("attnviz.sources.models.library").load_transformers()
        from sweep import candidates

        missing = {name for name, *_ in candidates(transformers)} - FOUND["architectures"].keys()
        assert not missing, "make sweep"
