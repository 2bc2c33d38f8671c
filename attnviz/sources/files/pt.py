"""The .pt format (``torch.save``): tensors only, opened by a child process under a memory limit.

What lives here: the checks before the child starts, and what it may cost. What does not: torch,
which only the child imports (``confined.pt_task``). ``torch.load`` of a stranger's file is never safe on
size (a 2 MB file can unpack to 2 GB, a 1.5 kB one can claim 2^34 numbers), nor, before 2.10, at all
(CVE-2025-32434, CVE-2026-24747). Nothing is unpickled but tensors, and there is no second try.
"""

from __future__ import annotations

import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path

from attnviz.errors import InputError, ResourceError, WeightsError
from attnviz.memory import cure, free_bytes
from attnviz.sources.confined.parent import PT_TASK, Ending, Limits, run_confined
from attnviz.sources.files import safetensors_
from attnviz.sources.files.contract import ArrayFile, file_size_bytes, map_file, quote, unreadable
from attnviz.sources.files.zip_directory import open_zip

_MAX_PICKLE_BYTES = 8 << 20
_EXTRA_BYTES = 256 << 20  # what the child may take beyond torch itself and the file's own size
_BASE_CPU_S, _CPU_S_PER_BYTE = 5.0, 2e-8


def open_arrays(path: Path) -> ArrayFile:
    """Open a .pt file: checked, loaded by a child process, handed back as plain bytes.

    Nested dicts become dotted names; plain values beside the tensors become metadata. Tensors
    saved on a GPU are read on the CPU.

    Raises
    ------
    WeightsError
        Not a plain file of tensors, damaged, or claiming more than it holds.
    InputError
        torch is missing or older than 2.10.
    ResourceError
        Memory, disk or time ran out.
    """
    _check_archive(path)
    # the child's copy is mapped and then loses its name, so that nothing stays behind
    try:
        with tempfile.TemporaryDirectory(prefix=".attnviz-") as folder:
            out = Path(folder) / "tensors"
            _run_child(path, out)
            return replace(safetensors_.open_mapped(map_file(out), path.name), format="pt")
    except OSError as fault:
        raise ResourceError(
            f"no room for a copy of {path.name} in the folder for temporary files "
            f"({fault.strerror}): free some, or set TMPDIR"
        ) from fault


def _check_archive(path: Path) -> None:
    """Refuse what is compressed, overlong, or no ``torch.save`` zip, without any torch."""
    size_bytes = file_size_bytes(path)
    try:
        with open(path, "rb") as file:
            head = file.read(4)
    except OSError as fault:
        raise unreadable(path, fault) from fault
    if head and not head.startswith(b"PK"):
        kind = "the format of torch before 1.6" if head[:1] == b"\x80" else "no torch.save file"
        raise WeightsError(
            f"{path.name} begins with {head!r}, {kind}: wanted a zip of tensors; "
            "load it where it comes from and save it again, best as .safetensors"
        )
    with open_zip(path) as archive:
        members = archive.infolist()
    for member in members:
        if member.compress_type != zipfile.ZIP_STORED:
            raise WeightsError(
                f"{path.name}: {quote(member.filename)} is compressed ({member.compress_size} to "
                f"{member.file_size} bytes): torch.save never does that; refused as a zip bomb"
            )
    total = sum(member.file_size for member in members)
    if total > size_bytes:
        raise WeightsError(
            f"{path.name}: its members claim {total} bytes, the file has {size_bytes}: damaged"
        )
    pickles = [m for m in members if m.filename.rpartition("/")[2] == "data.pkl"]
    if any("/code/" in f"/{m.filename}" for m in members):
        raise WeightsError(
            f"{path.name} is a TorchScript program: wanted tensors only; "
            "save module.state_dict() instead"
        )
    if len(pickles) != 1 or pickles[0].file_size > _MAX_PICKLE_BYTES:
        raise WeightsError(
            f"{path.name}: {len(pickles)} members data.pkl of "
            f"{sum(m.file_size for m in pickles)} bytes: wanted one of at most {_MAX_PICKLE_BYTES}; "
            "save a state dict with torch.save"
        )


def _run_child(path: Path, out: Path) -> None:
    """Let the child write the tensors to ``out``; turn every way it can end into an error."""
    size_bytes = file_size_bytes(path)
    limits = Limits(
        extra_bytes=3 * size_bytes + _EXTRA_BYTES,
        cpu_s=_BASE_CPU_S + size_bytes * _CPU_S_PER_BYTE,
    )
    arguments = [str(path.absolute()), str(out), str(limits.extra_bytes)]
    end = run_confined(PT_TASK, arguments, limits=limits)
    _raise_answer(path, end, limits)


def _raise_answer(path: Path, end: Ending, limits: Limits) -> None:
    answer = end.answer
    if answer == {}:
        return
    if end.is_late:
        raise WeightsError(
            f"{path.name} was not read within {limits.cpu_s:.0f} s of processor time: "
            "it is damaged or hostile"
        )
    room = free_bytes()
    if (answer is None or "memory" in answer) and room is not None and room < limits.extra_bytes:
        raise ResourceError(f"no memory is left to read {path.name}: {cure()}")
    if answer is None:
        raise WeightsError(
            f"{path.name} made the reading process end (status {end.status}): "
            "it is damaged or hostile"
        )
    if "refused" in answer:
        raise WeightsError(f"{path.name} {answer['refused']}")
    if "torch" in answer:
        raise InputError(
            f"{path.name} needs torch 2.10 or newer (found: {answer['torch']}): older ones can be "
            "made to run code by such a file; update torch or convert to .safetensors"
        )
    if "disk" in answer:
        raise ResourceError(
            f"no room for a copy of {path.name} in the folder for temporary files "
            f"({answer['disk']}): free some, or set TMPDIR"
        )
    raise WeightsError(
        f"{path.name} takes more than {limits.extra_bytes} bytes of memory to open: "
        "it is damaged or hostile; a state dict takes its own size"
    )
