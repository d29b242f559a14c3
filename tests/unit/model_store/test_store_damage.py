"""Damage to a store is refused with the name of the file."""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, save

from model_store.base.erasure import Erasure
from model_store.disk.checksummed import checksummed
from model_store.errors import NotAStore, StoreDamaged
from model_store.store import Store
from model_store.versions import VersionRef
from tests.support.models.store_models import small_model
from tests.support.models.store_states import a_state, copied, read_everything

pytestmark = pytest.mark.usefixtures("quick_disk")

REFUSED = (StoreDamaged, NotAStore)


@pytest.fixture(scope="module", params=["dense", "csr"])
def intact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that has seen a version and an erasure; do not change it."""
    path = tmp_path_factory.mktemp("intact") / "m"
    model = small_model(request.param)
    store = model.create(path)
    store.write_version(VersionRef(1, 2), a_state(model, 1), edges=0)
    store.set_current(VersionRef(1, 2))
    store.erase(Erasure(nodes=np.array([3, 7]), edges=np.array([[1, 2]])), fencing=2)
    return path


def needed_files(path: Path) -> list[Path]:
    """Return every file of a store except those of versions that CURRENT does not name."""
    return sorted(file for file in path.rglob("*") if file.is_file() and "0-0" not in file.parts)


def assert_refused(path: Path, file: Path) -> None:
    with pytest.raises(REFUSED) as caught:
        read_everything(path)
    named = file.name if not file.name.startswith("index-") else "index-"
    assert named in caught.value.detail
    assert caught.value.remedy


def test_an_intact_store_is_read(intact: Path, tmp_path: Path) -> None:
    read_everything(copied(intact, tmp_path))


def test_any_missing_file_is_refused_by_name(intact: Path, tmp_path: Path) -> None:
    path = copied(intact, tmp_path)
    for file in needed_files(path):
        content = file.read_bytes()
        file.unlink()
        assert_refused(path, file)
        file.write_bytes(content)
    read_everything(path)


def test_any_missing_folder_is_refused_by_name(intact: Path, tmp_path: Path) -> None:
    for name in ("base", "versions", "versions/1-2"):
        path = copied(intact, tmp_path)
        shutil.rmtree(path / name)
        with pytest.raises(REFUSED, match=name):
            read_everything(path)


def test_any_truncated_or_longer_file_is_refused_by_name(intact: Path, tmp_path: Path) -> None:
    path = copied(intact, tmp_path)
    for file in needed_files(path):
        content = file.read_bytes()
        for altered in (b"", content[: len(content) // 2], content[:-1], content + b"\n", content + content):
            if altered != content:
                file.write_bytes(altered)
                assert_refused(path, file)
        file.write_bytes(content)
    read_everything(path)


def test_a_flipped_bit_in_any_file_is_refused_by_name(intact: Path, tmp_path: Path) -> None:
    path = copied(intact, tmp_path)
    random = np.random.default_rng(5)
    for file in needed_files(path):
        content = file.read_bytes()
        for place in {0, len(content) - 1, *random.integers(0, len(content), 12).tolist()} if content else ():
            altered = bytearray(content)
            altered[place] ^= 1 << int(random.integers(8))
            file.write_bytes(altered)
            assert_refused(path, file)
        file.write_bytes(content)
    read_everything(path)


def test_a_flipped_bit_in_any_byte_of_current_is_noticed(intact: Path, tmp_path: Path) -> None:
    path = copied(intact, tmp_path)
    current = (path / "CURRENT").read_bytes()
    for place in range(len(current)):
        altered = bytearray(current)
        altered[place] ^= 1 << (place % 8)
        (path / "CURRENT").write_bytes(altered)
        with pytest.raises(REFUSED, match=r"CURRENT|versions"):
            Store.open(path)


def reseal(file: Path, **changes: object) -> None:
    document = json.loads(file.read_text()) | changes
    del document["sha256"]
    file.write_bytes(checksummed(document))


def test_documents_of_another_format_are_refused_naming_both_numbers(intact: Path, tmp_path: Path) -> None:
    for name in ("manifest.json", "base/index-*-2.json", "versions/1-2/manifest.json"):
        path = copied(intact, tmp_path)
        [file] = path.glob(name)
        reseal(file, format=2)
        with pytest.raises(NotAStore, match=rf"{file.name} has format 2; .* reads format 4") as refused:
            read_everything(path)
        assert "train the model again" in refused.value.remedy


@pytest.mark.parametrize("name", ["manifest.json", "base/index-*-2.json", "versions/1-2/manifest.json"])
def test_documents_with_other_fields_are_refused_by_name(intact: Path, tmp_path: Path, name: str) -> None:
    path = copied(intact, tmp_path)
    [file] = path.glob(name)
    reseal(file, favourite_colour="blue")
    with pytest.raises(NotAStore, match=rf"{file.name}.*favourite_colour"):
        read_everything(path)


def test_files_of_another_model_are_refused(intact: Path, tmp_path: Path) -> None:
    other = small_model(seed=9)
    replace(other, manifest=replace(other.manifest, name="other")).create(tmp_path / "other")
    for name in ("manifest.json", "base", "versions"):
        path = copied(intact, tmp_path)
        if (path / name).is_dir():
            shutil.rmtree(path / name)
            shutil.copytree(tmp_path / "other" / name, path / name)
        else:
            shutil.copy(tmp_path / "other" / name, path / name)
        with pytest.raises(REFUSED):
            read_everything(path)


def test_a_version_in_the_place_of_another_is_refused(intact: Path, tmp_path: Path) -> None:
    path = copied(intact, tmp_path)
    small_model(seed=9).create(tmp_path / "other")
    shutil.copytree(path / "versions" / "1-2", path / "versions" / "2-2")
    store = Store.open(path)
    with pytest.raises(StoreDamaged, match=r"2-2/manifest\.json is that of version 1-2"):
        store.read_version(VersionRef(2, 2))
    reseal(tmp_path / "other" / "versions" / "0-0" / "manifest.json", manifest_sha256="0" * 64)
    shutil.rmtree(path / "versions" / "0-0")
    shutil.copytree(tmp_path / "other" / "versions" / "0-0", path / "versions" / "0-0")
    with pytest.raises(NotAStore, match=r"0-0/manifest\.json belongs to another model"):
        store.read_version(VersionRef(0, 0))


def test_other_weights_than_the_log_was_told_of_are_refused(intact: Path, tmp_path: Path) -> None:
    """An attacker can recompute the digests of files, but not that of the weights, which was signed."""
    path = copied(intact, tmp_path)
    version = path / "versions" / "1-2"
    tensors = load((version / "state.safetensors").read_bytes())
    state = save(tensors | {"features.weights": tensors["features.weights"] * (1 + 1e-10)})
    (version / "state.safetensors").write_bytes(state)
    reseal(version / "manifest.json", files={"state.safetensors": hashlib.sha256(state).hexdigest()})
    digest = hashlib.sha256((version / "manifest.json").read_bytes()).hexdigest()
    (path / "CURRENT").write_text(f"{version.name}\n{digest}\n")
    with pytest.raises(StoreDamaged, match="other weights"):
        Store.open(path).read_version(VersionRef(1, 2))


def test_an_older_index_under_a_newer_name_is_refused(intact: Path, tmp_path: Path) -> None:
    path = copied(intact, tmp_path)
    [index] = path.glob("base/index-*.json")
    shutil.copy(index, path / "base" / "index-5-7.json")
    with pytest.raises(StoreDamaged, match=rf"index-5-7\.json holds the index that belongs in {index.name}"):
        Store.open(path)


@pytest.mark.parametrize("name", ["base/features.values.bak", "versions/old", "versions/1-2.copy"])
def test_files_that_erasure_would_not_reach_are_refused_by_name(intact: Path, tmp_path: Path, name: str) -> None:
    path = copied(intact, tmp_path)
    (path / name).write_bytes(b"a copy of personal data")
    with pytest.raises(NotAStore, match=name):
        Store.open(path)
