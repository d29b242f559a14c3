"""Folders on disks of this machine, and on others."""

import os
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import psutil
import pytest

from service.errors import ConfigurationError
from service.home_id import kind_of, require_local

#: Mount points with their file systems, in the order of mounting.
MOUNTS = (
    ("/", "ext4"),
    ("/dev/shm", "tmpfs"),
    ("/srv/nfs", "nfs4"),
    ("/srv/nfs/local", "xfs"),
    ("/srv/with space", "fuse.sshfs"),
    ("/srv/both", "ext4"),
    ("/srv/both", "cifs"),
    ("/srv/docker", "overlay"),
    ("/srv/ntfs", "fuseblk"),
    ("/srv/mac", "virtiofs"),
    (os.fsdecode(b"/srv/\xff"), "ext4"),
)


@pytest.fixture(autouse=True)
def mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [SimpleNamespace(mountpoint=place, fstype=kind) for place, kind in MOUNTS]
    monkeypatch.setattr(psutil, "disk_partitions", lambda *, all: found)


@pytest.mark.parametrize(
    "folder",
    ["/", "/var/lethe", "/dev/shm/x", "/srv/nfs/local/home", "/srv/docker/home", "/srv/nfsx", "/srv/withspace"],
)
def test_a_disk_of_this_machine_is_accepted(folder: str) -> None:
    require_local(Path(folder), "LETHE_HOME")


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/srv/nfs", "nfs4"),
        ("/srv/nfs/home/var", "nfs4"),
        ("/srv/with space/home", "fuse.sshfs"),
        ("/srv/both/home", "cifs"),
        ("/srv/ntfs", "fuseblk"),
        ("/srv/mac/home", "virtiofs"),
    ],
)
def test_network_and_fuse_file_systems_are_refused_by_name(folder: str, kind: str) -> None:
    with pytest.raises(ConfigurationError, match=f"LETHE_HOME {folder} is on a {kind} file system"):
        require_local(Path(folder), "LETHE_HOME")


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "home").symlink_to("/srv/nfs/home")
    with pytest.raises(ConfigurationError, match="nfs4"):
        require_local(tmp_path / "home", "LETHE_HOME")


def test_where_mounts_cannot_be_listed_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "disk_partitions", Mock(side_effect=FileNotFoundError))
    require_local(Path("/srv/nfs"), "LETHE_HOME")


def test_the_memory_of_this_machine_is_known() -> None:
    assert kind_of(Path("/dev/shm")) == "tmpfs"
