"""Folders on disks of this machine, and on others."""

from pathlib import Path

import pytest

from service import home_id
from service.errors import ConfigurationError
from service.home_id import require_local

#: In Linux' format; a space in a mount point is an octal escape.
MOUNTS = r"""
21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
22 21 0:20 / /dev/shm rw,nosuid - tmpfs tmpfs rw
30 21 0:40 / /srv/nfs rw,relatime shared:1 master:2 - nfs4 host:/export rw
31 30 8:2 / /srv/nfs/local rw - xfs /dev/sdb1 rw
32 21 0:41 / /srv/with\040space rw - fuse.sshfs host:/ rw
33 21 0:42 / /srv/both rw - ext4 /dev/sdc1 rw
34 33 0:43 / /srv/both rw - cifs //host/share rw
35 21 0:44 / /srv/docker rw - overlay overlay rw
36 21 0:45 / /srv/ntfs rw - fuseblk /dev/sdd1 rw
37 21 0:46 / /srv/mac rw - virtiofs home rw
38 21 0:47 / /srv/\xff\u2028\xa0 rw - ext4 /dev/sde1 rw
"""


@pytest.fixture(autouse=True)
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "mountinfo"
    table.write_bytes(MOUNTS.lstrip().encode().replace(rb"\xff", b"\xff").replace(rb"\u2028", "\u2028".encode()))
    monkeypatch.setattr(home_id, "_MOUNTS", table)


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


def test_where_mounts_are_not_told_nothing_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(home_id, "_MOUNTS", tmp_path / "none")
    require_local(Path("/srv/nfs"), "LETHE_HOME")
