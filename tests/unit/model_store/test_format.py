"""A stored folder of format 4 is read, and writing it gives identical bytes.

`format-4.zip` holds a model of 23 nodes and 2 that joined, a version 2-2 with a node that is still to join, its Gram
checkpoint, and an interrupted erasure.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest

from model_store import gram_checkpoint
from model_store.base.index import Index
from model_store.disk.checksummed import checksummed
from model_store.store import Store
from model_store.versions import VersionRef
from projector.forgetting.factors import whole
from tests.support.device import DEVICE
from tests.support.models.store_states import read_everything

pytestmark = pytest.mark.usefixtures("quick_disk")

KEPT = Path(__file__).with_name("format-4.zip")


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    shutil.unpack_archive(KEPT, tmp_path / "m")
    return tmp_path / "m"


def test_a_folder_that_was_kept_is_read(kept: Path) -> None:
    store = Store.open(kept)
    assert store.current() == VersionRef(2, 2)
    assert store.manifest.warnings == ("A sentence, théorie \N{SNOWMAN}.",)
    assert store.manifest.column_scale == (0, -3, 12, 0, 1, 0)
    assert store.live_edges(VersionRef(2, 2)) == 17
    assert store.is_erasing()
    assert store.is_ungrown(VersionRef(2, 2))
    assert store.load_base().graph.node_ids == ("n0", "n1", "n2", "", *(f"n{row}" for row in range(4, 26)))
    read_everything(kept)


def test_its_manifest_is_written_as_the_same_bytes(kept: Path) -> None:
    assert checksummed(Store.open(kept).manifest, indent=1) == (kept / "manifest.json").read_bytes()


def test_its_indexes_are_written_as_the_same_bytes(kept: Path) -> None:
    paths = list(kept.glob("base/index-*.json"))
    assert [Index.read(path).is_open for path in sorted(paths)] == [False, True]
    for path in paths:
        assert Index.read(path).to_bytes() == path.read_bytes()


def test_its_versions_are_written_as_the_same_bytes(kept: Path, tmp_path: Path) -> None:
    store = Store.open(kept)
    state, edges = store.read_version(VersionRef(2, 2)), store.live_edges(VersionRef(2, 2))
    before = {path.name: path.read_bytes() for path in store.folder_of(VersionRef(2, 2)).iterdir()}
    (kept / "CURRENT").unlink()
    edit = store.edit(VersionRef(2, 2))
    digest = store.write_version(VersionRef(2, 2), state, edges=edges, beta_version=2, edit=edit)
    gram = gram_written(tmp_path, before[gram_checkpoint.FILE], digest)
    assert {path.name: path.read_bytes() for path in store.folder_of(VersionRef(2, 2)).iterdir()} | gram == before


def gram_written(folder: Path, kept: bytes, digest: str) -> dict[str, bytes]:
    """Read the checkpoint `kept` of that version and write it again."""
    (folder / gram_checkpoint.FILE).write_bytes(kept)
    gram = gram_checkpoint.read(folder, version_digest=digest, device=DEVICE)
    assert gram is not None
    assert np.array_equal(whole(gram.M_pinv).numpy(), np.eye(6) / 2)
    for _ in gram_checkpoint.write_steps(folder, gram, version_digest=digest):
        pass
    return {gram_checkpoint.FILE: (folder / gram_checkpoint.FILE).read_bytes()}
