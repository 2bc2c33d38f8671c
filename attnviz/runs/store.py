"""Write a file whole or not at all: temporary name, fsync, publish, fsync of the folder.

What lives here: the only way this program puts bytes on a disk. What does not: what the bytes are.
An existing file is kept unless ``force``; a link is replaced, never followed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, TypeAlias

from attnviz.errors import AttnvizError, InputError, ResourceError, UsageError

Content: TypeAlias = bytes | Callable[[BinaryIO], None]

_TEMPORARY = ".attnviz-"
_RESOURCE = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG, errno.ENOMEM}


def write_atomic(path: str | os.PathLike[str], content: Content, *, force: bool = False) -> Path:
    """Write a file so that its name never holds a part of it.

    Parameters
    ----------
    path
        Where to; its folder must exist.
    content
        The bytes, or a function that writes them into an open binary file.
    force
        Replace an existing file.

    Raises
    ------
    UsageError
        The file exists and ``force`` is not given.
    InputError
        No such folder, a folder of that name, a name that cannot be, no permission.
    ResourceError
        Disk full, input/output error, read-only disk.
    """
    target = Path(path)
    _check_target(target, force=force)
    temporary = target.parent / f"{_TEMPORARY}{os.getpid()}-{secrets.token_hex(6)}"
    try:
        _write_temporary(temporary, content)
        _publish(temporary, target, force=force)
        _sync_folder(target.parent)
    except (OSError, ValueError) as fault:
        raise explain_fault(target, fault) from fault
    finally:
        # whatever hinders this (no such folder, a name that cannot be) was reported already
        with contextlib.suppress(OSError, ValueError):
            os.unlink(temporary)
    return target


def write_folder_atomic(
    path: str | os.PathLike[str], files: Mapping[str, Content], *, force: bool = False
) -> Path:
    """Write a folder of files so that its name never holds a part of them.

    Raises
    ------
    UsageError, InputError, ResourceError
        As ``write_atomic``; with ``force`` only a folder is replaced, and only one that holds
        nothing but files with the endings of the new ones.
    """
    target = Path(os.path.normpath(path))
    _check_folder_target(target, {Path(name).suffix for name in files}, force=force)
    temporary = target.parent / f"{_TEMPORARY}{os.getpid()}-{secrets.token_hex(6)}"
    old = temporary.with_name(temporary.name + "-old")
    try:
        temporary.mkdir()
        for name, content in files.items():
            _write_temporary(temporary / name, content)
        _sync_folder(temporary)
        _publish_folder(temporary, target, old)
        _sync_folder(target.parent)
    except (OSError, ValueError) as fault:
        raise explain_fault(target, fault) from fault
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
    return target


def make_folder(path: str | os.PathLike[str]) -> Path:
    """Make a folder, and those it is in, unless it is there; flushed like a file.

    Raises
    ------
    InputError, ResourceError
        As ``write_atomic``.
    """
    target = Path(path)
    try:
        if target.is_dir():
            return target
        target.mkdir(parents=True, exist_ok=True)
        _sync_folder(target.parent)
    except (OSError, ValueError) as fault:
        raise explain_fault(target, fault) from fault
    return target


def _check_folder_target(target: Path, endings: set[str], *, force: bool) -> None:
    """Keep what is there; with force, keep whatever is more than an older run's own files."""
    try:
        if not os.path.lexists(target):
            return
        if not force:
            raise UsageError(f"{target} exists: it is kept; give --force to replace it")
        if target.is_symlink() or not target.is_dir():
            raise UsageError(f"{target} is no folder: a folder cannot take its place")
        with os.scandir(target) as found:
            others = sorted(
                entry.name
                for entry in found
                if not entry.is_file(follow_symlinks=False)
                or Path(entry.name).suffix not in endings
            )
    except (OSError, ValueError) as fault:
        raise explain_fault(target, fault) from fault
    if others:
        raise UsageError(
            f"{target} holds more than {', '.join(sorted(endings))} files ({others[0]!r}): "
            "it is kept even with --force; choose another name"
        )


def _publish_folder(temporary: Path, target: Path, old: Path) -> None:
    """Give the folder its name; the one it replaces comes back if that fails."""
    if not os.path.lexists(target):
        os.rename(temporary, target)
        return
    os.rename(target, old)
    try:
        os.rename(temporary, target)
    except BaseException:
        os.rename(old, target)
        raise


def _check_target(target: Path, *, force: bool) -> None:
    try:
        if target.is_dir() and not target.is_symlink():
            raise InputError(f"{target} is a folder: give the name of a file in it")
        if os.path.lexists(target) and not force:
            raise UsageError(f"{target} exists: it is kept; give --force to replace it")
        if os.path.lexists(target) and not _is_replaceable(os.lstat(target).st_mode):
            raise InputError(f"{target} is a device or a pipe: give the name of a plain file")
    except (OSError, ValueError) as fault:
        raise explain_fault(target, fault) from fault


def _is_replaceable(mode: int) -> bool:
    return stat.S_ISREG(mode) or stat.S_ISLNK(mode)


def _write_temporary(temporary: Path, content: Content) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    with os.fdopen(os.open(temporary, flags, 0o666), "wb") as file:
        if isinstance(content, bytes):
            file.write(content)
        else:
            content(file)
        file.flush()
        os.fsync(file.fileno())


def _publish(temporary: Path, target: Path, *, force: bool) -> None:
    """Give the file its name; without force a name that appeared meanwhile is not replaced."""
    if force:
        os.replace(temporary, target)
        return
    try:
        os.link(temporary, target)
    except FileExistsError:
        raise UsageError(f"{target} exists: it is kept; give --force to replace it") from None
    except OSError as fault:
        if fault.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS):
            raise
        os.replace(temporary, target)  # a file system without hard links


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":  # pragma: no cover  (Windows)
        return
    handle = os.open(folder or ".", os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def explain_fault(target: Path, fault: OSError | ValueError) -> AttnvizError:
    """Return the error a user gets where a file or folder could not be written."""
    if isinstance(fault, OSError) and fault.errno in _RESOURCE:
        reason = os.strerror(fault.errno or 0)
        return ResourceError(f"cannot write {target}: {reason}; free some space or choose another")
    reason = getattr(fault, "strerror", None) or str(fault)
    return InputError(f"cannot write {target}: {reason}; choose an existing, writable folder")
