"""A disk that stops in the middle, and then keeps everything, only what was synced, or something in between."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

OPERATIONS = ("open", "write", "pwrite", "fsync", "rename", "unlink", "mkdir", "rmdir")


class Stopped(BaseException):
    """The process is gone: nothing after this reaches the disk."""


class Loss(StrEnum):
    """What becomes of the changes that were not synced when the disk stops."""

    #: The process was killed: all of them are there.
    NONE = "none"
    #: The process was killed, and half of the write it was in is there.
    TORN = "torn"
    #: The power failed: none of them is there.
    ALL = "all"
    #: The power failed: of each file and folder, some of the first are there.
    SOME = "some"


@dataclass
class Change:
    """A change that is not synced yet, and how to undo it."""

    #: The path of a folder, or the inode of a file.
    where: str | int
    undo: Callable[[], None]


@dataclass
class FailingDisk:
    """Counts the changes that the process makes to files, and stops it before the one numbered `stop_at`.

    With `at_stop`, that is called instead and the process goes on: it was only suspended.
    """

    trash: Path
    stop_at: int | None = None
    loss: Loss = Loss.NONE
    at_stop: Callable[[], None] | None = None
    #: (operation, path, bytes) of every change so far.
    log: list[tuple[str, str, int]] = field(default_factory=list)
    _paths: dict[int, Path] = field(default_factory=dict)
    #: A descriptor per inode that was written, by which its old content is put back wherever it is by then.
    _inodes: dict[int, int] = field(default_factory=dict)
    _unsynced: list[Change] = field(default_factory=list)
    _stopped: bool = False
    _real: dict[str, Callable[..., Any]] = field(
        default_factory=lambda: {name: getattr(os, name) for name in OPERATIONS}
    )

    @contextmanager
    def mounted(self) -> Iterator["FailingDisk"]:
        """While inside, the process's changes to files go through this disk."""
        self.trash.mkdir(parents=True, exist_ok=True)
        with pytest.MonkeyPatch.context() as patch:
            for name in OPERATIONS:
                patch.setattr(os, name, getattr(self, f"_{name}"))
            yield self

    def lose(self, random: np.random.Generator) -> None:
        """After the stop: takes away the unsynced changes that do not survive it."""
        if self.loss in (Loss.ALL, Loss.SOME):
            self._undo(random)
        for descriptor in self._inodes.values():
            os.close(descriptor)

    def _undo(self, random: np.random.Generator) -> None:
        kept = {
            where: 0
            if self.loss is Loss.ALL
            else int(random.integers(0, 1 + sum(c.where == where for c in self._unsynced)))
            for where in {change.where for change in self._unsynced}
        }
        lost = []
        for change in self._unsynced:
            kept[change.where] -= 1
            if kept[change.where] < 0:
                lost.append(change)
        for change in reversed(lost):
            change.undo()

    def _step(self, operation: str, path: str | Path, size: int = 0) -> bool:
        """Counts a change; True when the process stops in it and half of it is still made."""
        if self._stopped:
            raise Stopped
        if len(self.log) == self.stop_at:
            if self.at_stop is not None:
                self.stop_at, resume = None, self.at_stop
                with pytest.MonkeyPatch.context() as patch:
                    for name, real in self._real.items():
                        patch.setattr(os, name, real)
                    resume()
            else:
                self._stopped = True
                if self.loss is Loss.TORN and operation in ("write", "pwrite"):
                    return True
                raise Stopped
        self.log.append((operation, str(path), size))
        return False

    def _note(self, where: str | int, undo: Callable[[], None]) -> None:
        self._unsynced.append(Change(where, undo))

    def _note_content(self, descriptor: int, path: Path, old: bytes) -> None:
        inode = os.fstat(descriptor).st_ino
        if inode not in self._inodes:
            self._inodes[inode] = self._real["open"](path, os.O_WRONLY)

        def undo() -> None:
            os.ftruncate(self._inodes[inode], 0)
            os.pwrite(self._inodes[inode], old, 0)

        self._note(inode, undo)

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
                self._note(str(path.parent), lambda: path.unlink(missing_ok=True))
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

    def _fsync(self, descriptor: int) -> None:
        path = self._paths[descriptor]
        self._step("fsync", path)
        where = str(path) if path.is_dir() else os.fstat(descriptor).st_ino
        self._unsynced = [change for change in self._unsynced if change.where != where]

    def _rename(self, source: Any, target: Any) -> None:
        source, target = Path(source), Path(target)
        self._step("rename", target)
        replaced = self._keep(target) if target.is_file() else None
        self._real["rename"](source, target)

        def undo() -> None:
            if target.exists():
                self._real["rename"](target, source)
            if replaced is not None:
                shutil.move(replaced, target)

        self._note(str(target.parent), undo)

    def _unlink(self, path: Any) -> None:
        path = Path(path)
        self._step("unlink", path)
        kept = self._keep(path)
        self._real["unlink"](path)
        self._note(str(path.parent), lambda: shutil.move(kept, path) if path.parent.exists() else None)

    def _mkdir(self, path: Any, mode: int = 0o777) -> None:
        path = Path(path)
        self._step("mkdir", path)
        self._real["mkdir"](path, mode)
        self._note(str(path.parent), lambda: shutil.rmtree(path, ignore_errors=True))

    def _rmdir(self, path: Any) -> None:
        path = Path(path)
        self._step("rmdir", path)
        self._real["rmdir"](path)
        self._note(str(path.parent), lambda: path.mkdir(exist_ok=True))

    def _keep(self, path: Path) -> Path:
        copy = self.trash / f"{len(self.log)}-{path.name}"
        copy.write_bytes(path.read_bytes())
        return copy


def stops(action: Callable[[], object], disk: FailingDisk) -> bool:
    """Runs `action` on the disk; True when the disk stopped it."""
    try:
        with disk.mounted():
            action()
    except Stopped:
        return True
    return False
