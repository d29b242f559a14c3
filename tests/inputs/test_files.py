"""A file is read, or refused by what is wrong with it: no member is ignored, and nothing ends with a traceback."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from model_store.datasets import load
from model_store.datasets.downloads import DOWNLOADABLE
from model_store.datasets.synthetic import PREFIX
from projector.errors import ExplainedError
from tests.support.everyday import everyday
from tests.support.inputs.files import DATASETS, WEIGHTS, Spoilt, dataset, spoilt, weights, written
from tests.support.inputs.reading import Outcome, read_all
from tests.support.inputs.variations import UNKNOWN, VALUES, Sweep, fault_of, misspellings
from tests.support.models.trained_models import Models


def test_every_form_of_a_dataset_is_swept() -> None:
    assert DATASETS.keys() == load._READERS.keys()


@pytest.mark.parametrize("suffix", everyday(DATASETS, ".npz"))
@pytest.mark.parametrize("most", everyday((1, 20), 1))
def test_a_dataset_is_read_or_refused_by_what_is_wrong_with_it(tmp_path: Path, suffix: str, most: int) -> None:
    sweep = Sweep(f"datasets {suffix}")
    needed = ("edge_index", "x", "y")
    files = [Spoilt("whole", DATASETS[suffix](list(dataset().items())))]
    files += spoilt(dataset(), DATASETS[suffix], needed, sweep, most)
    judge(sweep, "dataset", tmp_path / "files", suffix, files)


@pytest.mark.parametrize("suffix", everyday(WEIGHTS, ".safetensors"))
@pytest.mark.parametrize("most", everyday((1, 20), 1))
def test_weights_are_read_or_refused_by_what_is_wrong_with_them(tmp_path: Path, suffix: str, most: int) -> None:
    sweep = Sweep(f"weights {suffix}")
    files = [Spoilt("whole", WEIGHTS[suffix](list(weights().items())))]
    files += spoilt(weights(), WEIGHTS[suffix], ("W",), sweep, most)
    judge(sweep, "weights", tmp_path / "files", suffix, files)


def judge(sweep: Sweep, kind: str, folder: Path, suffix: str, files: list[Spoilt]) -> None:
    made = written(folder, suffix, iter(files))
    paths = [folder / name for name in sweep.cases(made)]
    for path, outcome in read_all(kind, paths):
        case = made[path.name]
        if case.what == "whole" and outcome.how != "read":
            sweep.find(path, f"a whole file was not read: {outcome.told}")
        if what := fault(outcome, case.wrong):
            sweep.find(f"{suffix} {case.what}", what)
    sweep.judge()


def fault(outcome: Outcome, wrong: tuple[str, ...]) -> str | None:
    """What is wrong with what became of a file; None when nothing is."""
    if outcome.how in ("traceback", "killed"):
        return f"{outcome.how} ({outcome.told[:200]})"
    return fault_of(outcome.how == "refused", outcome.told, *wrong) if wrong else None


def test_a_dataset_by_name_or_made_up_is_found_or_refused_by_its_name(tmp_path: Path) -> None:
    sweep = Sweep("named datasets")
    taken = [*DOWNLOADABLE, "cora"]
    names = [(one, one) for known in taken for one in misspellings(known, taken) if one.lower() not in taken]
    parts = {"n": "60", "d": "12", "classes": "3", "seed": "1"}
    made_up: list[tuple[str, str]] = [(f"{PREFIX}{_spec(parts)},{UNKNOWN}=1", UNKNOWN)]
    for name, value in parts.items():
        rest = {one: text for one, text in parts.items() if one != name}
        made_up += [(f"{PREFIX}{_spec(rest)},{wrong}={value}", wrong) for wrong in misspellings(name, parts)]
        made_up.append((f"{PREFIX}{_spec(rest)}", name))
        made_up.append((f"{PREFIX}{_spec(parts)},{name}={value}", name))
        made_up += [(f"{PREFIX}{_spec(rest)},{name}={strange}", name) for strange in VALUES if not strange.isdigit()]
    for source, wrong in sweep.cases([*names, *made_up]):
        try:
            load.load_dataset(source, data_dirs=[tmp_path], download=None)
        except ExplainedError as error:
            if what := fault_of(True, f"{error.detail} {error.remedy}", wrong):
                sweep.find(source, what)
        else:
            sweep.find(source, "read")
    sweep.judge()


def _spec(parts: dict[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in parts.items())


@pytest.mark.slow
def test_a_model_is_read_or_refused_by_what_is_wrong_with_a_document_of_it(tmp_path: Path) -> None:
    model = Models(tmp_path / "trained").trained("synthetic:n=60,d=12,classes=3,seed=1")
    sweep = Sweep("models")
    cases = [(path, *case) for path in sorted(model.rglob("*.json")) for case in changed(json.loads(path.read_text()))]
    made = {}
    for number, (path, document, what, wrong) in enumerate(sweep.cases(cases)):
        folder = tmp_path / f"{number:04}"
        shutil.copytree(model, folder)
        file = folder / path.relative_to(model)
        file.write_bytes(document)
        made[folder] = (f"{path.relative_to(model)} {what}", wrong)
    for folder, outcome in read_all("model", list(made)):
        case, wrong = made[folder]
        if found := fault(outcome, wrong):
            sweep.find(case, found)
    sweep.judge()


def changed(document: dict[str, Any], place: tuple[str, ...] = ()) -> Iterator[tuple[bytes, str, tuple[str, ...]]]:
    """A checksummed document with members unknown, missing, twice and of other types, its digest made anew."""
    inner: Any = document
    for name in place:
        inner = inner[name]
    where = ".".join(place)
    for name, value in list(inner.items()):
        if name == "sha256":
            continue
        less = {one: each for one, each in inner.items() if one != name}
        # Of a table of arrays or files it is the table that is named.
        yield digested(document, place, less), f"{where} without {name}", (name, *place)
        yield digested(document, place, {**less, f"{name}_": value}), f"{where} {name}_ for {name}", (name, *place)
        for other in (None, True, -1, 1.5, 2**63, "x", "", [], {}, [None], {UNKNOWN: 1}):
            if type(other) is not type(value):
                yield digested(document, place, {**inner, name: other}), f"{where} {name} {other!r}", ()
        if isinstance(value, dict):
            yield from changed(document, (*place, name))
    yield digested(document, place, {**inner, UNKNOWN: 1}), f"{where} with {UNKNOWN}", (UNKNOWN, *place)


def digested(document: dict[str, Any], place: tuple[str, ...], inner: dict[str, Any]) -> bytes:
    """The bytes of a document with the object at `place` another, and with its digest."""
    whole = json.loads(json.dumps(document))
    if place:
        parent = whole
        for name in place[:-1]:
            parent = parent[name]
        parent[place[-1]] = inner
    else:
        whole = dict(inner)
    if "sha256" not in whole:
        return json.dumps(whole).encode()
    whole.pop("sha256")
    text = json.dumps({**whole, "sha256": "0" * 64}) + "\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    return text.replace("0" * 64, digest).encode()
