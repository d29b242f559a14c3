"""Folders made by someone else: an import reads, copies and overwrites nothing outside them."""

import errno
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from model_store.base.arrays import digest_of
from model_store.base.erasure import Erasure
from model_store.base.index import Index
from model_store.errors import NotAStore, StoreDamaged
from model_store.replacement import check_store
from model_store.store import Store
from model_store.untrusted_folder import copy_model, require_plain
from projector.graph.external_ids import SLOT_BYTES
from tests.support.models.store_models import random_ids, small_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    small_model("csr").create(tmp_path / "m")
    return tmp_path / "m"


def resealed(model: Path, change: Callable[[Index], Index]) -> None:
    """Change a model's index, with a matching digest."""
    path = model / "base" / Index.latest(model / "base").file_name
    path.write_bytes(change(Index.read(path)).to_bytes())


def naming(table: str, array: str, file: str) -> Callable[[Index], Index]:
    def change(index: Index) -> Index:
        one = index.tables[table]
        arrays = {**one.arrays, array: replace(one.arrays[array], file=file)}
        return index.with_table(table, replace(one, arrays=arrays))

    return change


@pytest.mark.parametrize(
    "file",
    [
        "../victim",
        "/etc/passwd",
        "labels.labels-0-0/../../victim",
        "labels.masks-0-0",
        "manifest.json",
        "",
        "labels.labels",
    ],
)
def test_an_index_that_names_a_file_outside_of_its_folder_is_refused(model: Path, file: str) -> None:
    resealed(model, naming("labels", "labels", file))
    with pytest.raises(NotAStore, match=r"index-\d+-0\.json"):
        Store.open(model)


def test_ids_that_lie_across_chunks_of_rows_are_refused(tmp_path: Path) -> None:
    """Erasing works by chunks: it would overwrite the end of one id and the beginning of another."""
    model = tmp_path / "long"
    small_model(nodes=20, node_ids=random_ids(np.random.default_rng(0), 20)).create(model, chunk_rows=5)

    def shifted(index: Index) -> Index:
        table = index.tables["ids"]
        starts, one = table.starts.copy(), table.arrays["utf8"]
        starts[1:-1] -= 1
        slots = np.frombuffer((model / "base" / one.file).read_bytes(), dtype=np.uint8).reshape(-1, SLOT_BYTES)
        digests = "".join(digest_of(np.ascontiguousarray(part)) for part in np.split(slots, starts[1:-1]))
        return index.with_table("ids", replace(table, starts=starts, arrays={"utf8": replace(one, digests=digests)}))

    resealed(model, shifted)
    with pytest.raises(StoreDamaged, match="does not locate the ids of the nodes"):
        check_store(model)


def test_a_link_in_the_place_of_an_array_is_neither_read_nor_overwritten(model: Path, tmp_path: Path) -> None:
    store, victim = Store.open(model), tmp_path / "victim"
    labels = next((model / "base").glob("labels.labels-*"))
    shutil.move(labels, victim)
    labels.symlink_to(victim)
    before = victim.read_bytes()
    for reach in (store.load_base, lambda: store.erase(Erasure(nodes=np.array([0])), fencing=1)):
        with pytest.raises(StoreDamaged, match="not a regular file"):
            reach()
    assert victim.read_bytes() == before


def _link(path: Path) -> None:
    path.symlink_to("/etc/hostname")


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _folder_link(path: Path) -> None:
    path.symlink_to("/etc", target_is_directory=True)


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    # A socket's path may have 107 bytes, and a test's path is longer.
    here = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"/proc/self/fd/{here}/{path.name}")
    finally:
        os.close(here)


def _deep(path: Path) -> None:
    (path / "a" / "b" / "c").mkdir(parents=True)


@pytest.mark.parametrize("where", ["extra", ".hidden", "base/extra", "versions/0-0/extra"])
@pytest.mark.parametrize("make", [_link, _loop, _folder_link, _pipe, _socket, _deep])
def test_what_is_no_file_is_refused_by_name_wherever_it_lies(
    model: Path, make: Callable[[Path], None], where: str
) -> None:
    make(model / where)
    with pytest.raises(NotAStore, match=where):
        check_store(model)


@pytest.mark.parametrize(
    ("folder", "said"),
    [("missing", "No such file"), ("m/manifest.json", "Not a directory"), ("x" * 300, "too long")],
)
def test_what_is_no_folder_is_refused_by_name(model: Path, folder: str, said: str) -> None:
    with pytest.raises(NotAStore, match=f"{folder}.*{said}"):
        check_store(model.parent / folder)


def test_a_folder_that_may_not_be_read_is_refused_by_name(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    iterdir = Path.iterdir

    def refusing(path: Path) -> Iterator[Path]:
        if path.name == "base":
            # The tests may run as root, which may do everything.
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", refusing)
    with pytest.raises(NotAStore, match=r"m/base cannot be read \(Permission denied\)"):
        check_store(model)


def test_files_that_take_more_memory_than_there_is_are_not_read(model: Path) -> None:
    require_plain(model, free_bytes=lambda: 1 << 30)
    with (model / "base" / "beta.values-9-9").open("wb") as sparse:
        sparse.truncate(1 << 40)
    with pytest.raises(NotAStore, match="are free"):
        require_plain(model, free_bytes=lambda: 1 << 30)


def test_a_copy_holds_what_belongs_to_the_model_and_nothing_else(model: Path, tmp_path: Path) -> None:
    (model / "notes.txt").write_text("who was deleted")
    (model / "versions" / "0-0" / "gram").write_bytes(b"of another machine")
    (model / ".CURRENT-1-1").write_text("")
    copied = copy_model(model, tmp_path / "copy")
    expected, found = Store.open(model).load_base(), copied.load_base()
    assert found.graph.node_ids == expected.graph.node_ids
    assert np.array_equal(found.beta, expected.beta)
    names = {path.name for path in (tmp_path / "copy").rglob("*")}
    assert names.isdisjoint({"notes.txt", "gram", ".CURRENT-1-1"})
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "copy").rglob("*"))


def test_a_model_amid_an_erasure_is_not_copied(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("model_store.base.base.carry_out", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Store.open(model).erase(Erasure(nodes=np.array([0])), fencing=0)
    with pytest.raises(NotAStore, match="still contains deleted data"):
        copy_model(model, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
