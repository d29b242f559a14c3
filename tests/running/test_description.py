"""The description of a model comes from its publication and the database, without the unlearner's memory."""

from dataclasses import replace
from functools import partial

import pytest

from projector.forgetting.status import RepairProgress, RepairStatus
from service.db import lease as leases
from service.db.transactions import transaction
from service.domain.lease_report import Condition, LeaseReport, Phase
from service.domain.states import Guarantee
from service.errors import Unavailable
from service.predictions.facts import Facts, ModelFacts, VersionFacts
from service.predictions.served_model import model_description
from service.predictions.version_rows import VersionRepository
from tests.support.service.db_harness import MODEL, Database, made

TRAINED = ModelFacts(MODEL, 40, 16, ("a", "b"), 2, "last", "sym", "softmax", 1e-4, 12.5)
SERVED = VersionFacts(0, 40, 100, 16, 0.5, 0.02, "cpu")


async def test_nothing_is_described_before_there_is_a_publication(db: Database) -> None:
    with pytest.raises(Unavailable):
        await model_description(db.engine, MODEL, lambda: None)


async def test_the_description_is_of_the_version_that_is_served(db: Database) -> None:
    facts = Facts(TRAINED, SERVED)
    describe = partial(model_description, db.engine, MODEL, lambda: facts)
    trained = await describe()
    assert (trained.facts, trained.repair, trained.guarantee) == (facts, RepairStatus.NONE, Guarantee.SPAN)
    one = replace(made(1, repair=RepairStatus.PENDING), weights_sha256_before=trained.weights_sha256)
    async with transaction(db.engine) as connection:
        await VersionRepository(connection).insert(one)
    # It is committed, but not served yet.
    assert await describe() == trained
    facts = Facts(TRAINED, replace(SERVED, version=1, live_nodes=39, rank=15))
    assert (await describe()).repair_progress == RepairProgress(0, 0, None), "nobody has said anything of it"
    lease = await leases.acquire(db.engine, MODEL, "one", 60)
    assert lease is not None
    progress = RepairProgress(iterations=3, products=17, bound_relative=0.004)
    await leases.renew(db.engine, lease, LeaseReport(Condition(Phase.SERVING), progress))
    now = await describe()
    assert now.facts == facts
    assert (now.repair, now.repair_progress) == (RepairStatus.PENDING, progress)
    await db.rows("UPDATE versions SET repair = 'converged', repair_version = 1")
    done = await describe()
    assert (done.guarantee, done.repair_progress) == (Guarantee.RETRAINED, None)


async def test_a_residual_of_weights_published_with_noise_is_not_reported_for_the_next_without(db: Database) -> None:
    describe = partial(model_description, db.engine, MODEL, lambda: Facts(TRAINED, replace(SERVED, version=2)))
    noisy = made(
        1,
        publication_epsilon=1.0,
        publication_delta=1e-4,
        publications_planned=100,
        publication_mu=0.03,
        commitment_salt="a" * 64,
    )
    without = made(2)
    async with transaction(db.engine) as connection:
        versions = VersionRepository(connection)
        await versions.insert(noisy)
        await versions.finish(noisy.id, span_residual=1e-15, durations_ms={})
        await versions.insert(without)
    assert (await describe()).span_residual is None
    async with transaction(db.engine) as connection:
        await VersionRepository(connection).finish(without.id, span_residual=2e-15, durations_ms={})
    assert (await describe()).span_residual == 2e-15
