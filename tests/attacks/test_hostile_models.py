"""Manipulated model folders with corrected digests are imported or refused with a message, and nothing outside is
touched.

Hypothesis changes every file of a trained model in every way: values in the documents, bytes and lengths of the arrays,
shapes of the weights, names, and things that are not files.
"""

import hashlib
import json
import math
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

from model_store.base.erasure import Erasure
from model_store.store import Store
from model_store.versions import VersionRef
from projector.errors import ProjectorError
from projector.network.spec import ModelSpec
from service.cli.main import main
from service.cli.training import TrainingOptions, train_model
from tests.support.models.store_growth import an_edit

#: Number of folders tried.
_FOLDERS = 2000
_UNSEALED = "0" * 64

#: Errors of a change when an earlier one has left nothing to change.
_NOTHING_TO_CHANGE = (OSError, LookupError, TypeError, AttributeError, ValueError)
#: The models' files are smaller; larger ones are not read by this test (bytes).
_SMALL = 1 << 20
#: Maximum growth of the process (bytes).
_ROOM = 4 << 30

Change = Callable[[Path], None]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Sparse and dense models, with and without deletions, with every part that a manifest may name."""
    folder = tmp_path_factory.mktemp("models")
    data = {
        "sparse": (ModelSpec(label_hops=1), TrainingOptions(cohorts=1)),
        "dense": (ModelSpec(diffusion=True, hops=1), TrainingOptions()),
        "mlp": (ModelSpec(mlp_width=4), TrainingOptions(public=[str(row) for row in range(30)])),
    }
    made = []
    for name, (spec, options) in data.items():
        dataset = "synthetic:n=60,d=12,classes=3,seed=1"
        if name == "dense":
            rng = np.random.default_rng(0)
            ring = np.array([[row, (row + 1) % 60] for row in range(60)])
            edges = np.concatenate([ring, ring[:, ::-1]]).T
            dataset = str(folder / "dense.npz")
            np.savez(dataset, edge_index=edges, x=rng.standard_normal((60, 5)), y=np.arange(60) % 3)
        train_model(dataset, folder / name, spec, options, data_dirs=[])
        made.append(folder / name)
    served = folder / "served"
    shutil.copytree(folder / "sparse", served)
    store = Store.open(served)
    state = store.read_version(store.current())
    state.live[3] = state.featured[3] = False
    store.write_version(VersionRef(1, 1), state, edges=0)
    store.set_current(VersionRef(1, 1))
    store.erase(Erasure(nodes=np.array([3])), fencing=1)
    grown = folder / "grown"
    shutil.copytree(served, grown)
    store = Store.open(grown)
    edit = an_edit(store.load_base(), np.random.default_rng(0))
    live, featured = (np.append(mask, [True] * len(edit.ids)) for mask in (state.live, state.featured))
    state = replace(state, live=live, featured=featured)
    store.write_version(VersionRef(2, 1), state, edges=0, beta_version=2, edit=edit)
    store.set_current(VersionRef(2, 1))
    base = store.load_base()
    store.write_beta(base.beta, base.label_beta, version=2, fencing=1)
    store.erase(Erasure(), fencing=1, keep=VersionRef(2, 1))
    store.grow(VersionRef(2, 1), fencing=1)
    return [*made, served, grown]


def is_small(path: Path) -> bool:
    return path.is_file() and path.stat().st_size <= _SMALL


def documents(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.json") if is_small(path))


def unsealed(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def checksummed(path: Path, document: Any) -> None:
    """Like `model_store.disk.checksummed.checksummed`, with NaN and infinities."""
    if isinstance(document, dict):
        document = document | {"sha256": _UNSEALED}
    text = json.dumps(document) + "\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    head, found, tail = text.rpartition(_UNSEALED)
    path.write_bytes((head + digest + tail).encode() if found else text.encode())


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def reseal(folder: Path) -> None:
    """Correct every digest that a change has invalidated, if the documents still parse."""
    for path in folder.rglob("*"):
        if not path.is_dir() and not is_small(path):
            return
    manifest = sha256(folder / "manifest.json")
    for path in documents(folder / "base"):
        index = unsealed(path)
        for table in index["tables"].values():
            for array in table["arrays"].values():
                raw, starts = (folder / "base" / array["file"]).read_bytes(), table["starts"]
                size = np.dtype(array["dtype"]).itemsize * array["width"]
                parts = (raw[first * size : last * size] for first, last in pairwise(starts))
                array["digests"] = "".join(hashlib.sha256(part).hexdigest() for part in parts)
        checksummed(path, index | {"manifest_sha256": manifest})
    for path in documents(folder / "versions"):
        files = {"state.safetensors": sha256(path.with_name("state.safetensors"))}
        checksummed(path, unsealed(path) | {"manifest_sha256": manifest, "files": files})
    current = (folder / "CURRENT").read_text().split("\n")[0]
    (folder / "CURRENT").write_text(f"{current}\n{sha256(folder / 'versions' / current / 'manifest.json')}\n")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to every value within a document; for lists, to their first few."""
    members = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, member in members:
        yield (*path, key)
        yield from places(member, (*path, key))


STRANGE = st.one_of(
    st.sampled_from(
        [
            None,
            True,
            0,
            -1,
            1,
            2,
            257,
            2**31,
            2**53,
            2**62,
            2**63 - 1,
            2**63,
            10**400,
            0.5,
            -0.0,
            1e308,
            math.nan,
            math.inf,
        ]
    ),
    st.sampled_from(["", "/etc/passwd", "../victim", "victim", "a\nb", "\x1b[1m", "\ud800", "<f8", "|O", "9" * 5000]),
    st.sampled_from(
        [[], {}, [[]], [0], [0, -1], [2**62, 2**63], ["a"], {"a": 1}, "concat", "csr", "float64", [0] * 100]
    ),
    st.integers(),
    st.text(max_size=20),
)


@st.composite
def changed_values(draw: st.DrawFn) -> Change:
    which, where, value = draw(st.integers(0, 2)), draw(st.floats(0, 1, exclude_max=True)), draw(STRANGE)
    how = draw(st.sampled_from(["replace", "replace", "replace", "remove", "add", "rename"]))

    def change(folder: Path) -> None:
        found = documents(folder)
        path = found[which % len(found)]
        document = unsealed(path)
        all_places = list(places(document))
        *way, last = all_places[int(where * len(all_places))]
        parent = document
        for key in way:
            parent = parent[key]
        if how == "replace":
            parent[last] = value
        elif how == "remove":
            del parent[last]
        elif isinstance(parent, dict):
            parent[str(value)[:50]] = parent.pop(last) if how == "rename" else value
        else:
            parent.append(value)
        checksummed(path, document)

    return change


@st.composite
def changed_bytes(draw: st.DrawFn) -> Change:
    which, places_ = (
        draw(st.integers(0, 50)),
        draw(st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=9)), max_size=4)),
    )
    size = draw(st.sampled_from([None, None, None, 0, 1, 15, 10**6, 1 << 40, 1 << 62]))

    def change(folder: Path) -> None:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        path = files[which % len(files)]
        with path.open("r+b") as file:
            for at, content in places_:
                file.seek(int(at * path.stat().st_size))
                file.write(content)
            if size is not None:
                try:
                    file.truncate(size)
                except OSError:
                    file.truncate(1 << 30)

    return change


@st.composite
def changed_weights(draw: st.DrawFn) -> Change:
    name, what = draw(st.integers(0, 7)), draw(st.sampled_from(["shape", "dtype", "nan", "gone", "more", "none"]))

    def change(folder: Path) -> None:
        path = sorted(path for path in folder.glob("versions/*/state.safetensors") if is_small(path))[-1]
        tensors = load(path.read_bytes())
        key = sorted(tensors)[name]
        array = tensors[key]
        tensors[key] = {
            "shape": array.reshape(-1),
            "dtype": array.astype(np.float32),
            "nan": np.full_like(array, 255 if array.dtype == np.uint8 else np.nan),
            "gone": array,
            "more": np.concatenate([array, array]),
            "none": array[:0],
        }[what]
        if what == "gone":
            del tensors[key]
        path.write_bytes(save(tensors))

    return change


@st.composite
def changed_files(draw: st.DrawFn) -> Change:
    which = draw(st.integers(0, 60))
    how = draw(
        st.sampled_from(["link", "twin", "loop", "folder", "pipe", "zero", "gone", "renamed", "copied", "parent"])
    )
    name = draw(st.sampled_from(["x", ".x", "a-0-0", "labels.labels-7-7", "erasing-9-9.json", "index-9-9.json", "2-2"]))

    def change(folder: Path) -> None:
        entries = sorted(folder.rglob("*"))
        path = entries[which % len(entries)]
        if how == "renamed":
            path.rename(path.with_name(name))
            return
        if how == "copied":
            path = path.with_name(name)
        elif how == "twin" and is_small(path):
            # The same bytes, outside: following the link finds every digest correct.
            outside = folder.parent / "outside" / "twin"
            shutil.copy(path, outside)
            outside.chmod(0o600)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        match how:
            case "link" | "copied":
                path.symlink_to(folder.parent / "outside" / "victim")
            case "twin":
                path.symlink_to(folder.parent / "outside" / "twin")
            case "loop":
                path.symlink_to(path.name)
            case "parent":
                path.symlink_to("..", target_is_directory=True)
            case "folder":
                path.mkdir()
            case "pipe":
                os.mkfifo(path)
            case "zero":
                path.symlink_to("/dev/zero")

    return change


def snapshot(folder: Path) -> dict[str, tuple[int, int, str]]:
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        found[str(path)] = (status.st_mode, status.st_mtime_ns, sha256(path) if path.is_file() else "")
    return found


def imported(folder: Path, home: Path) -> int:
    """Return the exit status of `model import`; any other exception fails the test."""
    with pytest.raises(SystemExit) as ended:
        main(["model", "import", str(folder), "--home", str(home)])
    status = ended.value.code
    assert status is None or isinstance(status, int)
    return status or 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_model_from_anywhere_is_imported_or_refused_and_nothing_outside_is_touched(
    models: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    for name in [name for name in os.environ if name.startswith("LETHE_")]:
        monkeypatch.delenv(name)
    # Declared sizes must not be allocated on this machine.
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _ROOM, limits[1]))
    request.addfinalizer(lambda: resource.setrlimit(resource.RLIMIT_AS, limits))
    counts = {"taken": 0, "refused": 0}
    changes = st.one_of(changed_values(), changed_values(), changed_bytes(), changed_weights(), changed_files())

    @settings(
        max_examples=_FOLDERS,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        model=st.sampled_from(models),
        made=st.lists(changes, min_size=1, max_size=2),
        put_right=st.sampled_from([True, True, True, False]),
    )
    def attack(model: Path, made: list[Change], put_right: bool) -> None:
        place = tmp_path / "place"
        shutil.rmtree(place, ignore_errors=True)
        (place / "outside").mkdir(parents=True)
        (place / "outside" / "victim").write_text("not Lethe's\n")
        folder = place / "model"
        shutil.copytree(model, folder)
        for change in made:
            with suppress(*_NOTHING_TO_CHANGE):
                change(folder)
        if put_right:
            with suppress(*_NOTHING_TO_CHANGE):
                reseal(folder)
        before = snapshot(place / "outside")
        status = imported(folder, place / "home")
        printed = capsys.readouterr()
        assert 0 <= status <= 5
        assert "Traceback" not in printed.err
        assert "\x1b" not in printed.err
        assert (status == 0) == (place / "home" / "model").exists()
        counts["taken" if status == 0 else "refused"] += 1
        if status == 0:
            store = Store.open(place / "home" / "model")
            try:
                store.erase(Erasure(nodes=np.array([0, 1])), fencing=store.fencing() + 1)
            except ProjectorError:
                # At least a typed error; but an imported model was read completely, so erasing should not fail.
                raise AssertionError("an imported model cannot be erased from") from None
        assert snapshot(place / "outside") == before

    attack()
    # Some changes have no effect, such as those of a name or of a warning.
    assert counts["taken"] > 10
    assert counts["refused"] > 10
