"""A model that replaces the served one: requested, awaited, and recorded."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest

from model_store.build import build_model
from model_store.datasets.load import load_dataset
from model_store.store import Store
from projector.forgetting.status import RepairStatus
from projector.network.spec import Combine, LossKind, ModelSpec
from service.access.keyring import Keyring
from service.db.engine import create_engine
from service.db.transactions import transaction
from service.domain.states import Cause
from service.domain.versions import ModelImport
from service.settings import Settings
from service.unlearner.causes import ImportRepository
from service.unlearner.importer import request_import
from tests.support.service.db_harness import made, until

NEW_NODES = 150


def trained(
    folder: Path, *, dataset: str = f"synthetic:n={NEW_NODES},d=10,classes=4,seed=8", name: str = "small"
) -> Path:
    spec = ModelSpec(combine=Combine.CONCAT, hops=1, loss=LossKind.OVR, label_hops=1)
    graph = load_dataset(dataset, data_dirs=[])
    build_model(graph, spec, name=name, dataset="synthetic", split="full").write(folder)
    return folder


@pytest.fixture(scope="module")
def new_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another graph, features, classes and specification than the served model's, under the same name."""
    return trained(tmp_path_factory.mktemp("new") / "model")


def copy_of(folder: Path, target: Path) -> Store:
    shutil.copytree(folder, target)
    return Store.open(target)


@asynccontextmanager
async def repository(settings: Settings) -> AsyncIterator[ImportRepository]:
    assert settings.database_url is not None
    engine = create_engine(settings.database_url)
    async with transaction(engine) as connection:
        yield ImportRepository(connection)
    await engine.dispose()


async def asked(settings: Settings, model: Path, *, exclude_deleted: bool = False, without_added: bool = False) -> UUID:
    assert settings.database_url is not None
    engine = create_engine(settings.database_url)
    try:
        return await request_import(
            engine,
            Keyring.open(settings.home / "keys"),
            settings.model_dir,
            exclude_deleted=exclude_deleted,
            without_added=without_added,
            provide=partial(copy_of, model),
        )
    finally:
        await engine.dispose()


async def ended(settings: Settings, import_id: UUID) -> ModelImport:
    found: list[ModelImport] = []

    async def has_ended() -> bool:
        async with repository(settings) as imports:
            one = await imports.get(import_id)
        found[:] = [] if one is None else [one]
        return one is not None and one.finished_at is not None

    await until(has_ended)
    return found[0]


def beside(settings: Settings) -> list[str]:
    """Return what imports have left beside the model."""
    names = (path.name for path in settings.home.iterdir() if path.name.startswith(".model."))
    return sorted(name for name in names if name != ".model.importing")


IMPORTED = made(
    5,
    cause=Cause.IMPORT,
    requests=0,
    weights_sha256_before="0" * 64,
    weights_sha256="1" * 64,
    deleted_nodes=2,
    deleted_features=1,
    directions_removed=0,
    span_residual=1e-14,
    repair=RepairStatus.CONVERGED,
    repair_tolerance=1e-8,
    repair_version=5,
    repair_iterations=3,
    distance_bound_before=0.5,
    distance_bound_after=1e-9,
    distance_bound_before_relative=0.1,
    distance_bound_after_relative=1e-10,
    rank=12,
    live_nodes=58,
)
