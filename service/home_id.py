"""Identity of a LETHE_HOME, and the check that it lies on a local disk."""

import fcntl
import os
import secrets
from pathlib import Path

import msgspec
import psutil

from service.errors import ConfigurationError

#: Below the home, but excluded from its backups.
_FILE = Path("run") / "id.json"


class _Drawn(msgspec.Struct, frozen=True):
    """Content of the file."""

    id: str
    #: Inodes of the home, the file's folder and the file; they differ in a copy.
    inodes: tuple[int, int, int]


def known_id(home: Path) -> str | None:
    """Return the id of a home; None if it has none yet."""
    try:
        drawn = msgspec.json.decode((home / _FILE).read_bytes(), type=_Drawn)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return drawn.id if drawn.inodes == _inodes(home) else None


def id_of(home: Path) -> str:
    """Return the id of a home, drawing one if none exists. Raises OSError."""
    folder = (home / _FILE).parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # If two processes start together, only one draws the id.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        found = known_id(home)
        if found is None:
            found = secrets.token_hex(16)
            (home / _FILE).unlink(missing_ok=True)
            with open(home / _FILE, "xb", opener=_private) as file:
                file.write(msgspec.json.encode(_Drawn(found, _inodes(home))))
                file.flush()
                os.fsync(file.fileno())
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return found


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _inodes(home: Path) -> tuple[int, int, int]:
    file = home / _FILE
    return home.stat().st_ino, file.parent.stat().st_ino, file.stat().st_ino


_NETWORK = (
    *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs"),
    *("nfs4", "ocfs2", "orangefs", "pvfs2", "smb3", "smbfs", "virtiofs"),
)


def require_local_disks(home: Path, share: Path | None) -> None:
    """Raise ConfigurationError if LETHE_HOME or LETHE_SHARE is on a network or FUSE file system."""
    require_local(home, "LETHE_HOME")
    if share is not None:
        require_local(share, "LETHE_SHARE")


def require_local(folder: Path, name: str) -> None:
    """Raise ConfigurationError if `folder`, or its nearest existing parent, is on a network or FUSE file system.

    `name` is the folder's name in the settings.
    """
    kind = kind_of(folder)
    if kind in _NETWORK or kind.partition(".")[0] in ("fuse", "fuseblk"):
        raise ConfigurationError(
            f"{name} {folder} is on a {kind} file system. There, a process may see the writes of another late.",
            "Use a folder on a disk of this machine, such as ext4, xfs, btrfs, zfs, overlayfs or tmpfs.",
        )


def kind_of(folder: Path) -> str:
    """Return the type of the folder's file system; empty if unknown."""
    path = folder.resolve()
    try:
        mounts = [one for one in psutil.disk_partitions(all=True) if path.is_relative_to(one.mountpoint)]
    except OSError:
        return ""
    # The sort keeps the order of mounts at one place: a later mount lies over an earlier one.
    mounts.sort(key=lambda one: len(Path(one.mountpoint).parts))
    return str(mounts[-1].fstype) if mounts else ""
