"""The manifest's promises to its readers."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from model_store.disk.checksummed import checksummed, read_checksummed
from model_store.errors import NotAStore, StoreDamaged
from model_store.manifest import Accuracy, FeatureDtype, FeatureLayout, InjectedChannel, Manifest, TrainingRecord
from projector.forgetting.canaries import Canaries
from projector.network.diffusion import Diffusion
from projector.network.spec import Combine, ModelSpec, PropagationKind, SolverKind
from projector.training.mlp import MlpRecord
from tests.support.everyday import every_case

MANIFEST = Manifest(
    name="cora",
    created_at=datetime(2026, 3, 1, 12, 30, 5, 250, tzinfo=UTC),
    dataset="cora",
    split="full",
    spec=ModelSpec(propagation=PropagationKind.ROW, combine=Combine.CONCAT, solver=SolverKind.SGD, regularization=1e-6),
    nodes=2708,
    edges=5278,
    features=1433,
    feature_layout=FeatureLayout.CSR,
    feature_dtype=FeatureDtype.FLOAT32,
    classes=("0", "théorie", "\N{SNOWMAN}"),
    rank=1431,
    sigma_ref_squared=1234.000000000001,
    rank_tolerance=1e-10,
    condition_number=157.3,
    accuracy=Accuracy(train=0.99, val=None, test=0.875),
    training=TrainingRecord(
        relative_gradient=3e-12, identity_error=1e-13, iterations=17, seconds=2.5, device="cuda: NVIDIA H200"
    ),
    diffusion=Diffusion(sigma_h=0.25, sigma_z=0.0),
    column_scale=(0, -3, 12),
    injected_channels=(InjectedChannel(column=1433, nodes=60),),
    canaries=Canaries(cohorts=3, nodes=4, first_column=1434, tag="0a1b2c3d"),
    mlp=MlpRecord(width=64, public_nodes=140),
    warnings=("The condition number stays above 1e4.",),
)


def document_of(manifest: Manifest) -> dict[str, Any]:
    """Return the members of a manifest as written, except those that every document has."""
    document: dict[str, Any] = json.loads(checksummed(manifest))
    return {name: value for name, value in document.items() if name not in ("format", "sha256")}


Read = Callable[[object], Manifest]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read(document: object) -> Manifest:
        (tmp_path / "m.json").write_bytes(checksummed(document))
        return read_checksummed(tmp_path / "m.json", Manifest)

    return read


@pytest.mark.parametrize(
    "manifest",
    [
        MANIFEST,
        replace(
            MANIFEST,
            column_scale=None,
            injected_channels=(),
            canaries=None,
            mlp=None,
            diffusion=None,
            warnings=(),
            spec=ModelSpec(),
        ),
    ],
)
def test_a_manifest_survives_being_written_as_json(read: Read, manifest: Manifest) -> None:
    assert read(manifest) == manifest


def members(document: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for name, value in document.items():
        found.append((*path, name))
        if isinstance(value, dict):
            found += members(value, (*path, name))
    return found


ALL_MEMBERS = members(document_of(MANIFEST))


def inside(document: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    for name in path[:-1]:
        document = document[name]
    return document


@every_case("path", ALL_MEMBERS)
def test_a_missing_field_is_refused_by_name(read: Read, path: tuple[str, ...]) -> None:
    document = document_of(MANIFEST)
    del inside(document, path)[path[-1]]
    with pytest.raises(NotAStore, match=rf"m\.json: .*missing required field `{path[-1]}`"):
        read(document)


def wrong_values(path: tuple[str, ...]) -> list[Any]:
    """Return values of another type than the member's, and a list of forbidden content."""
    before = inside(document_of(MANIFEST), path)[path[-1]]
    accepted = float if before is None else type(before)
    return [value for value in (True, -1.5, "x", {"x": 1}) if type(value) is not accepted] + [[None]]


@every_case("path", ALL_MEMBERS)
def test_a_field_of_another_type_is_refused_by_name(read: Read, path: tuple[str, ...]) -> None:
    for value in wrong_values(path):
        document = document_of(MANIFEST)
        inside(document, path)[path[-1]] = value
        with pytest.raises(NotAStore, match=path[-1]):
            read(document)


@pytest.mark.parametrize(
    "path", [(), ("spec",), ("accuracy",), ("training",), ("canaries",), ("mlp",), ("diffusion",)], ids=".".join
)
def test_an_unknown_field_is_refused_by_name(read: Read, path: tuple[str, ...]) -> None:
    document = document_of(MANIFEST)
    inside(document, (*path, "x"))["flux_capacity"] = 1
    with pytest.raises(NotAStore, match="flux_capacity"):
        read(document)


def test_another_format_is_refused_naming_both_numbers(read: Read) -> None:
    document = {**document_of(MANIFEST), "format": 7}
    with pytest.raises(NotAStore, match=r"m\.json has format 7.*reads format 4"):
        read(document)


def test_every_flipped_bit_and_every_truncation_of_a_checksummed_document_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    written = checksummed(MANIFEST)
    flipped = [
        written[:place] + bytes([byte ^ 1 << place % 8]) + written[place + 1 :] for place, byte in enumerate(written)
    ]
    for altered in (*flipped, *(written[:length] for length in range(len(written)))):
        path.write_bytes(altered)
        with pytest.raises((StoreDamaged, NotAStore), match=r"m\.json"):
            read_checksummed(path, Manifest)
