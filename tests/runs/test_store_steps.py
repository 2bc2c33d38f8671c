"""Each step of writing a file or folder whole, by itself, and what a manifest tells apart."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnviz.errors import InputError, ResourceError, UsageError
from attnviz.runs import store
from attnviz.runs.batch import manifest as manifests
from attnviz.runs.batch.inputs import Input
from attnviz.runs.batch.manifest import make_manifest
from attnviz.runs.store import explain_fault, make_folder, write_atomic, write_folder_atomic

WATCHED = ("open", "fsync", "link", "replace", "rename", "unlink", "close")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Every call of the store that touches the disk, with the kind of what it got."""
    found: list[tuple[Any, ...]] = []

    def watch(name: str, real: Callable[..., Any]) -> None:
        def call(*given: Any, **named: Any) -> Any:
            what = [given[0]]
            if name == "fsync":
                what = ["folder" if stat.S_ISDIR(os.fstat(given[0]).st_mode) else "file"]
            elif name == "close":
                what = []
            found.append(
                (name, *(Path(w).name if w not in ("file", "folder") else w for w in what))
            )
            return real(*given, **named)

        monkeypatch.setattr(store.os, name, call)

    for name in WATCHED:
        watch(name, getattr(os, name))
    return found


TEMPORARY = re.compile(r"\.attnviz-\d+-[0-9a-f]{12}(-old)?")


def named(calls: list[tuple[Any, ...]]) -> list[str]:
    return [" ".join(TEMPORARY.sub(r"tmp\1", str(part)) for part in call) for call in calls]


def test_a_file_is_flushed_named_and_its_folder_flushed_in_this_order(
    tmp_path: Path, calls: list[tuple[Any, ...]]
) -> None:
    folder = tmp_path.name
    assert write_atomic(tmp_path / "a", b"x") == tmp_path / "a"
    assert named(calls) == ["open tmp", "fsync file", "link tmp", f"open {folder}", "fsync folder",
                            "close", "unlink tmp"]  # fmt: skip
    calls.clear()
    write_atomic(tmp_path / "a", b"y", force=True)
    assert named(calls) == ["open tmp", "fsync file", "replace tmp", f"open {folder}", "fsync folder",
                            "close", "unlink tmp"]  # fmt: skip


def test_everything_is_handed_to_the_system_before_it_is_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(store.os, "fsync", lambda file: sizes.append(os.fstat(file).st_size))
    write_atomic(tmp_path / "a", b"12345")
    write_atomic(tmp_path / "b", lambda file: file.write(b"123") and None)
    assert (sizes[0], sizes[2]) == (5, 3)


def test_the_first_file_by_name_is_told(tmp_path: Path) -> None:
    target = tmp_path / "layer"
    target.mkdir()
    for name in ("b.txt", "a.txt", "d.txt", "c.txt"):
        (target / name).write_bytes(b"")
    with pytest.raises(UsageError, match=r"\('a\.txt'\)"):
        write_folder_atomic(target, {"a.npy": b""}, force=True)


def test_a_folder_is_flushed_named_and_its_parent_flushed_in_this_order(
    tmp_path: Path, calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[str] = []
    rmtree = store.shutil.rmtree

    def remove(path: Path, **options: Any) -> None:
        assert options == {"ignore_errors": True}
        removed.append(TEMPORARY.sub(r"tmp\1", Path(path).name))
        rmtree(path, **options)

    monkeypatch.setattr(store.shutil, "rmtree", remove)
    target = tmp_path / "layer"
    assert write_folder_atomic(target, {"a.npy": b"1"}) == target
    steps = named(calls)
    assert steps[:7] == ["open a.npy", "fsync file", "open tmp", "fsync folder", "close", "rename tmp",
                         f"open {tmp_path.name}"]  # fmt: skip
    assert steps[7] == "fsync folder"
    assert removed == ["tmp", "tmp-old"]
    calls.clear()
    write_folder_atomic(target, {"a.npy": b"2"}, force=True)
    assert [step for step in named(calls) if step.startswith("rename")] == [
        "rename layer",
        "rename tmp",
    ]
    assert (target / "a.npy").read_bytes() == b"2"


def test_temporary_names_are_made_new_and_never_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    real = os.open

    def opened(path: Any, flags: int, *mode: int) -> int:
        seen.append(flags)
        assert mode in ((), (0o666,))
        return real(path, flags, *mode)

    monkeypatch.setattr(store.os, "open", opened)
    write_atomic(tmp_path / "a", b"x")
    wanted = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    assert seen[0] == wanted
    assert seen[1] == os.O_RDONLY
    monkeypatch.setattr(store.secrets, "token_hex", lambda n: "0" * 2 * n)
    blocked = tmp_path / f".attnviz-{os.getpid()}-{'0' * 12}"
    blocked.write_bytes(b"somebody's")
    with pytest.raises(InputError, match="cannot write"):
        write_atomic(tmp_path / "b", b"x")
    assert not (tmp_path / "b").exists()


def test_rights_are_what_the_user_s_mask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomic(tmp_path / "a", b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_what_is_there_is_kept_before_anything_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def never(_: Any) -> None:
        pytest.fail("written before it was known whether it may be")

    with pytest.raises(UsageError, match="--force"):
        write_atomic(path, never)
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(UsageError, match="--force"):
        write_folder_atomic(folder, {"a.npy": never})
    with pytest.raises(InputError, match="is a folder"):
        write_atomic(folder, never, force=True)
    (tmp_path / "to-folder").symlink_to(folder)
    write_atomic(tmp_path / "to-folder", b"new", force=True)
    assert (tmp_path / "to-folder").read_bytes() == b"new"
    assert not (tmp_path / "to-folder").is_symlink()
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "nothing")
    with pytest.raises(UsageError, match="exists"):
        write_atomic(dangling, never)


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS])
def test_a_disk_without_hard_links_takes_a_plain_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(store.os, "link", fail)
    write_atomic(tmp_path / "a", b"x")
    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"x"


@pytest.mark.parametrize(
    "number",
    [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG, errno.ENOMEM],
)
def test_faults_of_disk_and_memory_are_of_their_kind(number: int) -> None:
    fault = explain_fault(Path("a"), OSError(number, "x"))
    assert type(fault) is ResourceError
    assert str(fault).startswith(f"cannot write a: {os.strerror(number)}; free some space")


def test_faults_of_names_and_rights_are_of_theirs() -> None:
    for fault, reason in (
        (OSError(errno.EACCES, "Permission denied"), "Permission denied"),
        (OSError("odd"), "odd"),
        (ValueError("embedded null byte"), "embedded null byte"),
    ):
        told = explain_fault(Path("a"), fault)
        assert type(told) is InputError
        assert str(told) == f"cannot write a: {reason}; choose an existing, writable folder"


def test_folders_are_made_with_those_they_are_in(
    tmp_path: Path, calls: list[tuple[Any, ...]]
) -> None:
    target = tmp_path / "a" / "b"
    assert make_folder(target) == target
    assert target.is_dir()
    assert named(calls) == ["open a", "fsync folder", "close"]
    calls.clear()
    assert make_folder(target) == target
    assert calls == []
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match="cannot write"):
        make_folder(tmp_path / "file")
    with pytest.raises(InputError, match="cannot write"):
        make_folder(tmp_path / "nul\0")


def test_a_folder_made_meanwhile_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "a"
    answers = iter([False])
    monkeypatch.setattr(Path, "is_dir", lambda self: next(answers, True))
    os.mkdir(target)
    assert make_folder(target) == target


def test_only_folders_of_the_same_kind_of_files_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "layer"
    target.mkdir()
    (target / "a.npy").write_bytes(b"1")
    (target / "b.txt").write_bytes(b"1")
    (target / "c.npy").mkdir()
    with pytest.raises(UsageError, match=r"holds more than \.npy files \('b\.txt'\)"):
        write_folder_atomic(target, {"a.npy": b"2"}, force=True)
    os.unlink(target / "b.txt")
    with pytest.raises(UsageError, match=r"\('c\.npy'\)"):
        write_folder_atomic(target, {"a.npy": b"2"}, force=True)
    os.rmdir(target / "c.npy")
    (target / "d.npy").symlink_to(tmp_path)
    with pytest.raises(UsageError, match=r"\('d\.npy'\)"):
        write_folder_atomic(target, {"a.npy": b"2"}, force=True)
    assert (target / "a.npy").read_bytes() == b"1"

    def denied(*_: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(store.os, "scandir", denied)
    with pytest.raises(InputError, match="Permission denied"):
        write_folder_atomic(target, {"a.npy": b"2"}, force=True)
    monkeypatch.undo()
    with pytest.raises(InputError, match="cannot write"):
        write_folder_atomic("nul\0", {"a.npy": b"2"}, force=True)
    other = write_folder_atomic(f"{tmp_path}/x/../layer2/", {"a.npy": b"2"})
    assert other == tmp_path / "layer2"


def test_a_folder_that_failed_half_way_leaves_nothing(tmp_path: Path) -> None:
    def fail(_: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    with pytest.raises(ResourceError, match="cannot write"):
        write_folder_atomic(tmp_path / "layer", {"a.npy": b"1", "b.npy": fail})
    assert os.listdir(tmp_path) == []


# --- the manifest -------------------------------------------------------------------------------

INPUTS = [Input("a.txt", "txt", "00", 7), Input("b.jsonl", "jsonl", "11", 3)]


def made(**changed: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {"settings": {"head": "all", "causal": None, "layer": 1}, "source": {"name": "m", "sha256": "aa"},
                             "inputs": INPUTS, "shard_size": 4}  # fmt: skip
    return make_manifest(**{**asked, **changed})


def test_a_manifest_counts_texts_and_shards_and_names_every_column() -> None:
    found = made()
    assert list(found) == ["schema", "version", "settings", "source", "inputs", "n_texts", "shard_size",
                           "n_shards", "columns"]  # fmt: skip
    assert list(found["settings"].items()) == [("head", "all"), ("layer", 1)]
    assert (found["n_texts"], found["n_shards"]) == (10, 3)
    assert made(shard_size=5)["n_shards"] == 2
    assert made(shard_size=10)["n_shards"] == made(shard_size=11)["n_shards"] == 1
    assert made(inputs=[])["n_shards"] == 0
    assert found["inputs"][0] == {"name": "a.txt", "format": "txt", "sha256": "00", "rows": 7}
    assert list(found["columns"]) == ["heads", "texts"]
    assert all(": " in meaning for meaning in found["columns"]["heads"].values())
    data = manifests.dump({**found, "settings": {"text": "猫"}})
    assert data.endswith(b"}\n")
    assert "猫".encode() in data
    assert manifests.load(manifests.dump(found), folder="d") == found


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"settings": {"head": "0", "layer": 1}}, [("--head", "all", "0")]),
        ({"settings": {"head": "all", "layer": 1, "n_links": 3}}, [("--n-links", None, 3)]),
        ({"settings": {"head": "all"}}, [("--layer", 1, None)]),
        ({"source": {"name": "other", "sha256": "aa"}}, []),
        ({"source": {"name": "m", "sha256": "bb"}}, [("source sha256", "aa", "bb")]),
        ({"shard_size": 5}, [("--shard-size", 4, 5)]),
        ({"inputs": INPUTS[:1]}, [("inputs", 2, 1)]),
        ({"inputs": [Input("z", "txt", "22", 8), INPUTS[1]]}, [("name of input a.txt", "a.txt", "z")]),
        ({"inputs": [Input("a.txt", "csv", "22", 8), INPUTS[1]]}, [("format of input a.txt", "txt", "csv")]),
        ({"inputs": [Input("a.txt", "txt", "22", 8), INPUTS[1]]}, [("lines of input a.txt", 7, 8)]),
        ({"inputs": [INPUTS[0], Input("b.jsonl", "jsonl", "22", 3)]}, [("content of input b.jsonl", "11", "22")]),
        ({"inputs": [Input("a.txt", "txt", "22", 7), Input("b.jsonl", "jsonl", "22", 3)]},
         [("content of input a.txt", "00", "22"), ("content of input b.jsonl", "11", "22")]),
    ],
)  # fmt: skip
def test_differences_are_told_one_by_one(change: Any, told: list[Any]) -> None:
    assert list(manifests.differences(made(), made(**change))) == told


def test_versions_columns_and_oddities_differ_too() -> None:
    held = made()
    assert list(manifests.differences(held, {**held, "version": "9"})) == [
        ("version", held["version"], "9")
    ]
    odd = {**held, "inputs": "none", "settings": None, "columns": {"heads": 1, "texts": held["columns"]["texts"]}}  # fmt: skip
    names = [name for name, _, _ in manifests.differences(held, odd)]
    assert names == ["settings", "inputs", "columns heads"]
    for one, other in ((held, odd), (odd, held)):
        found = {name: pair for name, *pair in manifests.differences(one, other)}
        assert found["settings"] == [one["settings"], other["settings"]]
        assert found["inputs"] == [one["inputs"], other["inputs"]]
    assert list(manifests.differences(held, {**held, "n_texts": 99, "schema": "x"})) == []


def test_another_batch_is_refused_with_the_first_three_differences() -> None:
    held = made()
    manifests.refuse_other(held, made(), folder="d")
    three = {"head": "x" * 80, "layer": "猫", "a": 1}
    with pytest.raises(UsageError) as caught:
        manifests.refuse_other(held, made(settings=three), folder="d")
    shown = json.dumps("x" * 80)[:57] + "…"
    assert str(caught.value) == (
        f'd holds another batch: --head "all" there, {shown} here; --layer 1 there, "猫" here; '
        "--a not given there, 1 here; choose another folder, or give the same command to continue it"
    )
    with pytest.raises(UsageError, match="; and 1 more; choose") as caught:
        manifests.refuse_other(held, made(settings={**three, "b": 1}), folder="d")
    assert str(caught.value).count(" there, ") == 3
    assert manifests._show("x" * 58) == json.dumps("x" * 58)
    assert manifests._show("x" * 59) == json.dumps("x" * 59)[:57] + "…"


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b'{"schema": "attnviz.batch/1"}', b"[" * 99_999, b"\xff", b"null", b"3",
     b'{"schema": "attnviz.batch/1", "n_shards": 1}', b'"schema"'],
)  # fmt: skip
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(InputError, match=r"^d/manifest\.json is no manifest of a batch"):
        manifests.load(data, folder="d")


def test_other_schemas_and_kinds_are_refused() -> None:
    for change in ({"schema": "attnviz.batch/2"}, {"n_shards": "3"}, {"settings": []}):
        data = manifests.dump({**made(), **change})
        with pytest.raises(InputError, match=r"has schema .*: 'attnviz\.batch/1' is known"):
            manifests.load(data, folder="d")
