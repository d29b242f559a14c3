"""Refuses folders on network and FUSE file systems.

There a process may not see at once what another has done, and file locks may not hold.
"""

import os
import re
from pathlib import Path

from service.errors import ConfigurationError

_MOUNTS = Path("/proc/self/mountinfo")
#: A space, a tab, a line break or a backslash in a path.
_ESCAPE = re.compile(r"\\([0-7]{3})")
_NETWORK = (
    *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs"),
    *("nfs4", "ocfs2", "orangefs", "pvfs2", "smb3", "smbfs", "virtiofs"),
)


def require_local_disks(home: Path, share: Path | None) -> None:
    """Raise ConfigurationError where LETHE_HOME or LETHE_SHARE is on such a file system."""
    require_local(home, "LETHE_HOME")
    if share is not None:
        require_local(share, "LETHE_SHARE")


def require_local(folder: Path, name: str) -> None:
    """Raise ConfigurationError where `folder`, or the nearest folder above it that exists, is on such a file system.

    `name` is what the folder is called in the settings.
    """
    kind = _kind_of(folder)
    if kind in _NETWORK or kind.partition(".")[0] in ("fuse", "fuseblk"):
        raise ConfigurationError(
            f"{name} {folder} is on a {kind} file system. There, a process may not see at once what another wrote.",
            "Use a folder on a disk of this machine, such as ext4, xfs, btrfs, zfs, overlayfs or tmpfs.",
        )


def _kind_of(folder: Path) -> str:
    """The file system that a folder is on; empty where that cannot be told."""
    try:
        lines = os.fsdecode(_MOUNTS.read_bytes()).split("\n")
    except OSError:
        return ""
    path, found, kind = folder.resolve(), Path(), ""
    for line in lines:
        # "36 35 98:0 /root /mount/point options - kind source options", with any number of fields before the dash
        fields, found_kind, rest = line.partition(" - ")
        if not found_kind:
            continue
        mounted = Path(_ESCAPE.sub(lambda octal: chr(int(octal[1], 8)), fields.split(" ")[4]))
        # A later one lies over an earlier one.
        if path.is_relative_to(mounted) and len(mounted.parts) >= len(found.parts):
            found, kind = mounted, rest.split(" ")[0]
    return kind
