"""A disk that stops midway and then keeps all changes, only the synced ones, or something in between."""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from model_store.disk import durable

OPERATIONS = ("open", "write", "pwrite", "ftruncate", "fsync", "rename", "unlink", "mkdir", "rmdir")


class Stopped(BaseException):
    """The process has ended: nothing after this reaches the disk."""


class Loss(StrEnum):
    """The fate of unsynced changes when the disk stops."""

    #: The process was killed: all remain.
    NONE = "none"
    #: The process was killed: all remain, and half of the current write.
    TORN = "torn"
    #: The power failed: none remain.
    ALL = "all"
    #: The power failed: the first ones of each file remain, and any of the new and changed names.
    SOME = "some"


@dataclass
class Change:
    """An unsynced change, and how to undo it."""

    #: The inode of the file, or of the folder.
    where: int
    of_folder: bool
    undo: Callable[[], None]


@dataclass
class FailingDisk:
    """Counts the process' changes to files, and stops it before change number `stop_at`.

    With `at_stop`, it calls that function instead and the process continues, as after a suspension.
    """

    stop_at: int | None = None
    loss: Loss = Loss.NONE
    at_stop: Callable[[], None] | None = None
    stopped: bool = False
    #: (operation, path, bytes) of every change so far.
    log: list[tuple[str, str, int]] = field(default_factory=list)
    _paths: dict[int, Path] = field(default_factory=dict)
    #: A descriptor of each changed file and folder, to find it again after renames.
    _inodes: dict[int, int] = field(default_factory=dict)
    _unsynced: list[Change] = field(default_factory=list)
    _real: dict[str, Callable[..., Any]] = field(
        default_factory=lambda: {name: getattr(os, name) for name in OPERATIONS}
    )
    _real_blank: Callable[..., None] = durable.blank

    @contextmanager
    def mounted(self) -> Iterator["FailingDisk"]:
        """Route the process' changes to files through this disk in the block."""
        with pytest.MonkeyPatch.context() as patch:
            for name in OPERATIONS:
                patch.setattr(os, name, getattr(self, f"_{name}"))
            patch.setattr(durable, "blank", _blank)
            patch.setattr(durable, "at_once", _in_turn)
            try:
                yield self
            finally:
                if self.loss not in (Loss.ALL, Loss.SOME):
                    self._close()

    def lose(self, random: np.random.Generator) -> None:
        """After the stop, undo the unsynced changes that do not survive it."""
        if self.loss in (Loss.ALL, Loss.SOME):
            self._undo(random)
        self._close()

    def _close(self) -> None:
        for descriptor in self._inodes.values():
            os.close(descriptor)
        self._inodes.clear()

    def _undo(self, random: np.random.Generator) -> None:
        lost = self._unsynced if self.loss is Loss.ALL else self._some(random)
        for change in reversed(lost):
            change.undo()

    def _some(self, random: np.random.Generator) -> list[Change]:
        """Return the lost changes: the last unsynced writes of each file, and any unsynced names of each folder."""
        kept = {inode: random.integers(0, 1 + sum(c.where == inode for c in self._unsynced)) for inode in self._inodes}
        lost = []
        for change in self._unsynced:
            kept[change.where] -= 1
            if random.random() < 0.5 if change.of_folder else kept[change.where] < 0:
                lost.append(change)
        return lost

    def _step(self, operation: str, path: str | Path, size: int = 0) -> bool:
        """Count a change. Returns True if the process stops in it and half of it is still made."""
        if self.stopped:
            raise Stopped
        if len(self.log) == self.stop_at:
            if self.at_stop is not None:
                self.stop_at, resume = None, self.at_stop
                with pytest.MonkeyPatch.context() as patch:
                    for name, real in self._real.items():
                        patch.setattr(os, name, real)
                    patch.setattr(durable, "blank", self._real_blank)
                    resume()
            else:
                self.stopped = True
                if self.loss is Loss.TORN and operation in ("write", "pwrite"):
                    return True
                raise Stopped
        self.log.append((operation, str(path), size))
        return False

    def _note_content(self, descriptor: int, path: Path, old: bytes) -> None:
        inode = os.fstat(descriptor).st_ino
        if inode not in self._inodes:
            self._inodes[inode] = self._real["open"](path, os.O_WRONLY)

        def undo() -> None:
            os.ftruncate(self._inodes[inode], 0)
            os.pwrite(self._inodes[inode], old, 0)

        self._unsynced.append(Change(inode, False, undo))

    def _note_name(self, folder: Path, undo: Callable[[int], None]) -> None:
        inode = folder.stat().st_ino
        if inode not in self._inodes:
            self._inodes[inode] = self._real["open"](folder, os.O_RDONLY | os.O_DIRECTORY)
        self._unsynced.append(Change(inode, True, lambda: undo(self._inodes[inode])))

    def _open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        path = Path(path)
        if flags & (os.O_CREAT | os.O_TRUNC):
            existed = path.exists()
            self._step("create", path)
            old = path.read_bytes() if existed else b""
            descriptor: int = self._real["open"](path, flags, mode)
            if existed:
                self._note_content(descriptor, path, old)
            else:
                self._note_name(path.parent, lambda folder: _unlink(path.name, folder))
        else:
            descriptor = self._real["open"](path, flags, mode)
        self._paths[descriptor] = path
        return descriptor

    def _write(self, descriptor: int, data: Any) -> int:
        offset = os.lseek(descriptor, 0, os.SEEK_CUR)
        return self._write_anywhere("write", descriptor, data, offset)

    def _pwrite(self, descriptor: int, data: Any, offset: int) -> int:
        return self._write_anywhere("pwrite", descriptor, data, offset)

    def _write_anywhere(self, operation: str, descriptor: int, data: Any, offset: int) -> int:
        path = self._paths[descriptor]
        size = len(data)
        torn = self._step(operation, path, size)
        old = path.read_bytes()
        self._note_content(descriptor, path, old)
        if torn:
            self._real["pwrite"](descriptor, bytes(data)[: size // 2], offset)
            raise Stopped
        if operation == "pwrite":
            return int(self._real["pwrite"](descriptor, data, offset))
        return int(self._real["write"](descriptor, data))

    def _ftruncate(self, descriptor: int, length: int) -> None:
        path = self._paths[descriptor]
        self._step("ftruncate", path)
        self._note_content(descriptor, path, path.read_bytes())
        self._real["ftruncate"](descriptor, length)

    def _fsync(self, descriptor: int) -> None:
        path = self._paths[descriptor]
        self._step("fsync", path)
        where = os.fstat(descriptor).st_ino
        self._unsynced = [change for change in self._unsynced if change.where != where]

    def _rename(self, source: Any, target: Any) -> None:
        source, target = Path(source), Path(target)
        self._step("rename", target)
        replaced = target.read_bytes() if target.is_file() else None
        self._real["rename"](source, target)

        def undo(folder: int) -> None:
            if _exists(target.name, folder):
                os.rename(target.name, source.name, src_dir_fd=folder, dst_dir_fd=folder)
            if replaced is not None:
                _put(target.name, folder, replaced)

        self._note_name(target.parent, undo)

    def _unlink(self, path: Any) -> None:
        path = Path(path)
        self._step("unlink", path)
        content = path.read_bytes()
        self._real["unlink"](path)
        self._note_name(path.parent, lambda folder: _put(path.name, folder, content))

    def _mkdir(self, path: Any, mode: int = 0o777) -> None:
        path = Path(path)
        self._step("mkdir", path)
        self._real["mkdir"](path, mode)
        self._note_name(path.parent, lambda folder: shutil.rmtree(path.name, ignore_errors=True, dir_fd=folder))

    def _rmdir(self, path: Any) -> None:
        path = Path(path)
        self._step("rmdir", path)
        inode = path.stat().st_ino
        self._real["rmdir"](path)

        def undo(folder: int) -> None:
            if _exists(path.name, folder):
                return
            os.mkdir(path.name, dir_fd=folder)
            if inode in self._inodes:
                again = os.open(path.name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder)
                os.dup2(again, self._inodes[inode])
                os.close(again)

        self._note_name(path.parent, undo)


def _exists(name: str, folder: int) -> bool:
    return name in os.listdir(folder)


def _unlink(name: str, folder: int) -> None:
    if _exists(name, folder):
        os.unlink(name, dir_fd=folder)


def _put(name: str, folder: int, content: bytes) -> None:
    if os.fstat(folder).st_nlink == 0:
        return
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600, dir_fd=folder)
    os.write(descriptor, content)
    os.close(descriptor)


def stops(action: Callable[[], object], disk: FailingDisk) -> bool:
    """Run `action` on the disk. Returns True if the disk stopped it."""
    try:
        with disk.mounted():
            action()
    except Stopped:
        return True
    return False


def _in_turn(jobs: Sequence[Callable[[], None]]) -> None:
    """Do the work of `files.at_once` in a fixed order."""
    for job in jobs:
        job()


def _blank(descriptor: int, slots: NDArray[np.int64], *, slot_bytes: int, fill: int) -> None:
    """Blank like `files.blank`, with one write for each run of slots, between which the disk may stop."""
    for run in np.split(slots, np.flatnonzero(np.diff(slots) > 1) + 1):
        os.pwrite(descriptor, bytes([fill]) * (run.size * slot_bytes), int(run[0]) * slot_bytes)
