"""The HTTP application over a real database, without an unlearner: requests stay queued.

As a program, `api_harness.py DATABASE_URL HOME`, it serves on its own port until SIGTERM.
"""

import asyncio
import io
import socket
import sys
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import numpy as np
import scipy.sparse as sp
import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from sqlalchemy import update

from model_store.versions import VersionRef
from projector.forgetting.canaries import Canaries
from projector.forgetting.status import RepairProgress, RepairStatus
from projector.graph.edges import Edges
from service.access.api_keys import ApiKeyRepository, new_api_key
from service.access.key_disposal import UnneededKeys
from service.access.key_memory import key_memory
from service.access.keyring import Keyring
from service.access.limits import NodeAllowance, RateLimits
from service.access.own_slots import OwnSlots
from service.access.request_keys import RequestKeys
from service.db.engine import Engine, create_engine
from service.db.tables import ServiceSettingsRow
from service.db.transactions import transaction
from service.domain.figures import RequestNorms
from service.domain.kinds import RequestKind, Target
from service.domain.lease_report import Check
from service.domain.records import Pointer, Tombstone
from service.domain.scopes import Scope
from service.domain.snapshot import Snapshot
from service.domain.states import Cause, Guarantee
from service.log.leaves import AlreadyDeleted
from service.log.signed_checkpoints import LogSigner
from service.log.signing_keys import LogKeys
from service.observability.exposition import Exposition
from service.observability.logging import AccessLog, configure_logging
from service.observability.metrics import IntakeMetrics, UnlearningMetrics
from service.predictions.downloads import Downloads
from service.predictions.facts import Facts, ModelFacts, VersionFacts
from service.predictions.reader import Reader
from service.predictions.served_model import ModelInfo
from service.predictions.version_rows import PointerRepository, VersionRepository
from service.predictions.writer import Publisher
from service.queue.connection import connect
from service.requests.deletable import Deletions
from service.requests.drill_runs import CohortSearch, Drills
from service.requests.intake import Intake
from service.requests.moves import RequestMoves
from service.requests.tombstones import TombstoneLookup, TombstoneRepository
from service.settings import Settings
from service.unlearner.causes import ImportRepository
from service.unlearner.outcomes import nothing_left
from service.web.api.application import build
from service.web.dashboard.installation import install as install_dashboard
from service.web.services import Services, openid_connect
from tests.support.service.db_harness import NORMS, Said, committed, imported, made, outcome
from tests.support.service.publications import admitted, load, published_model, version_facts

MODEL = "tiny"
CLASSES = ("a", "b", "c")
#: External ids 0 … 39, one with a slash and one that is not ASCII.
NODES = (*(str(number) for number in range(38)), "user/38", "ålesund 39")

#: An address where nothing listens.
NO_REDIS = "redis://127.0.0.1:1"

INFO = ModelInfo(
    facts=Facts(
        ModelFacts(
            name=MODEL,
            nodes=len(NODES),
            features=16,
            classes=CLASSES,
            hops=2,
            combine="last",
            propagation="sym",
            loss="softmax",
            regularization=1e-4,
            condition_number=12.5,
        ),
        VersionFacts(
            version=1,
            live_nodes=len(NODES),
            edges=100,
            rank=16,
            distance_bound=0.5,
            distance_bound_relative=0.02,
            device="cpu",
        ),
    ),
    span_residual=3e-15,
    repair=RepairStatus.PENDING,
    repair_progress=RepairProgress(iterations=3, products=17, bound_relative=0.004),
    guarantee=Guarantee.SPAN,
    weights_sha256="0" * 64,
)


@dataclass
class Api:
    """A running application and its insides."""

    app: FastAPI
    services: Services
    engine: Engine
    #: The served snapshot; `forget` replaces it.
    snapshot: Snapshot
    #: External ids in the order of the rows: `NODES`, then canaries.
    nodes: tuple[str, ...]
    publisher: Publisher
    #: The access log.
    lines: io.StringIO
    #: Results of /readyz.
    checks: list[Check] = field(default_factory=list)
    _clients: AsyncExitStack = field(default_factory=AsyncExitStack)
    _batches: int = 0

    async def key(self, *scopes: Scope) -> tuple[UUID, str]:
        """Return the id and the text of a new key with these scopes."""
        made = new_api_key()
        async with transaction(self.engine) as connection:
            await ApiKeyRepository(connection).create(
                made.id, f"key {made.id}", scopes, self.services.keyring.api_key_hash(made.text)
            )
        return made.id, made.text

    async def client(self, *scopes: Scope) -> httpx2.AsyncClient:
        """Return a client with a new key of these scopes."""
        _, text = await self.key(*scopes)
        return await self.client_with(text)

    async def client_with(
        self, key: str | None, address: tuple[str, int] = ("127.0.0.1", 4711), /, **headers: str
    ) -> httpx2.AsyncClient:
        """Return a client that presents `key` and connects from `address`."""
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        transport = httpx2.ASGITransport(self.app, client=address)
        client = httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=headers)
        return await self._clients.enter_async_context(client)

    async def forget(
        self, subjects: Collection[Target], request_id: UUID, kind: RequestKind = RequestKind.NODE
    ) -> None:
        """Write the tombstones of `subjects`, and remove nodes from predictions and edges from the graph."""
        keyring = self.services.keyring
        tombstones: list[Tombstone] = []
        for subject in subjects:
            number, digest = keyring.tombstone_hash(MODEL, kind, subject)
            tombstones.append(Tombstone(kind, digest, number, request_id))
        async with transaction(self.engine) as connection:
            await TombstoneRepository(connection).insert(MODEL, tombstones, keyring.fingerprints())
        live, adjacency = self.snapshot.live.copy(), self.snapshot.edges.adjacency.copy()
        for subject in subjects if kind in (RequestKind.NODE, RequestKind.EDGE) else ():
            if isinstance(subject, str):
                live[self.nodes.index(subject)] = False
            else:
                ends = [self.nodes.index(end) for end in subject]
                adjacency[ends, ends[::-1]] = 0.0
        probabilities = np.where(live[:, None], self.snapshot.probabilities, 0.0)
        self.snapshot = Snapshot(self.snapshot.version + 1, probabilities, live, Edges(adjacency, live))
        publish(self.services.reader, self.publisher, self.snapshot)

    async def complete(self, request_id: UUID | str, norms: RequestNorms = NORMS) -> None:
        """Take a queued request to `completed` in its own batch, as the unlearner does."""
        self._batches += 1
        record, one = made(1 + self._batches), UUID(str(request_id))
        async with transaction(self.engine) as connection:
            requests = RequestMoves(connection)
            await committed(connection, record, {one: norms})
            await requests.mark_applied(record.id, [outcome(one)])
            await VersionRepository(connection).finish(record.id, span_residual=1e-15, durations_ms={})
            await requests.mark_completed({one: Said()})
        await self.unneeded_keys.destroy_dropped()

    @property
    def request_keys(self) -> RequestKeys:
        """The request keys of all processes."""
        return RequestKeys(self.services.settings.home / "keys" / "requests")

    @property
    def unneeded_keys(self) -> UnneededKeys:
        """The unlearner's handling of request keys."""
        return UnneededKeys(self.engine, self.request_keys)

    async def complete_without_work(self, accepted: dict[str, Any], by: UUID | str) -> None:
        """Complete a queued request whose targets were all deleted `by` another, as the unlearner does."""
        async with transaction(self.engine) as connection:
            await RequestMoves(connection).mark_completed_without_work(
                UUID(accepted["id"]),
                AlreadyDeleted(RequestKind.NODE, (UUID(str(by)),)),
                nothing_left(RequestKind.NODE, named=accepted["count"], with_node=0, by=[UUID(str(by))]),
            )
        await self.unneeded_keys.destroy_dropped()

    async def replace_model(self) -> None:
        """Record a completed import of a newly trained model in the database."""
        self._batches += 1
        version = made(1 + self._batches, cause=Cause.IMPORT, deleted_nodes=0, span_residual=0.0)
        async with transaction(self.engine) as connection:
            await imported(connection, version)
            await VersionRepository(connection).finish(version.id, span_residual=0.0, durations_ms={})
            await ImportRepository(connection).complete(version.id)

    async def count(self, table: str) -> int:
        """Count the rows of a table."""
        async with transaction(self.engine) as connection:
            return int((await connection.exec_driver_sql(f"SELECT count(*) FROM {table}")).scalar_one())


@asynccontextmanager
async def serving(
    database_url: str,
    home: Path,
    *,
    model: str = MODEL,
    canaries: Canaries | None = None,
    redis_url: str = NO_REDIS,
    hops: int = 2,
    **settings: Any,
) -> AsyncIterator[Api]:
    """Serve the application over the migrated database at `database_url`."""
    async with AsyncExitStack() as stack:
        engine = create_engine(database_url)
        stack.push_async_callback(engine.dispose)
        redis = connect(redis_url)
        stack.push_async_callback(redis.aclose)
        keyring = Keyring.open(home / "keys")
        own_slots = stack.enter_context(OwnSlots.open(home / "keys" / "requests"))
        configured = Settings(home=home, database_url=database_url, **settings)
        intake = Intake(engine, own_slots, keyring, max_queued_nodes=configured.max_queued_nodes)
        stack.push_async_callback(intake.close)
        async with transaction(engine) as connection:
            pointer = Pointer(model, 1, 1, "1-1", "0" * 64, "0" * 64)
            granted = sorted({scope for grant in configured.grants for scope in grant.scopes})
            await connection.execute(update(ServiceSettingsRow).values(oidc_scopes=granted))
            if await PointerRepository(connection).read(model) is None:
                await PointerRepository(connection).create(pointer)
        cohorts = range(1, canaries.cohorts + 1) if canaries else ()
        nodes = (*NODES, *(node for cohort in cohorts if canaries for node in canaries.cohort_ids(cohort)))
        snapshot = first_snapshot(len(nodes))
        registry, lines = CollectorRegistry(), io.StringIO()
        reader, metrics, publisher = admitted(home), IntakeMetrics(registry), Publisher(home, home)
        published = published_model(nodes, snapshot, classes=CLASSES, canaries=canaries, hops=hops)
        load(publisher, VersionRef(1, 1), published, snapshot)
        tombstones = TombstoneLookup(engine, keyring, model)
        cohort_search = CohortSearch(lambda: canaries, reader.live, tombstones)
        limits, most = RateLimits(redis, keyring.cursor_key), configured.max_nodes_per_request
        keys = key_memory(engine, keyring)
        api = Api(
            app=build(
                max_body_bytes=configured.max_body_bytes,
                registry=registry,
                access_log=AccessLog("console", configured.log_level, lines, process="api-0"),
            ),
            services=Services(
                settings=configured,
                model=model,
                engine=engine,
                keyring=keyring,
                keys=keys,
                limits=limits,
                allowance=NodeAllowance(redis, model, configured.max_predicted_nodes),
                reader=reader,
                downloads=Downloads(reader, home / "run"),
                model_info=_info,
                deletions=Deletions(
                    model, engine, reader, tombstones, keyring, intake, limits, metrics, most, _repairs(configured)
                ),
                drills=Drills(engine, model, intake, keyring, cohort_search, metrics),
                readiness=_unset,
                exposition=Exposition(registry, "api-0", home / "run" / "metrics"),
                metrics=metrics,
                openid=openid_connect(configured, engine, keyring, keys),
            ),
            engine=engine,
            snapshot=snapshot,
            nodes=nodes,
            publisher=publisher,
            lines=lines,
            checks=[Check("postgres", True, "answers")],
        )

        async def readiness() -> list[Check]:
            return api.checks

        install_dashboard(api.app)
        api.services = replace(api.services, readiness=readiness)
        api.app.state.services = api.services
        async with api._clients:
            yield api


def publish(reader: Reader, publisher: Publisher, snapshot: Snapshot) -> None:
    """Publish `snapshot` as the reader's next version."""
    before, now = VersionRef(snapshot.version - 1, 1), VersionRef(snapshot.version, 1)
    publisher.write(now, snapshot, version_facts(snapshot), before)
    assert publisher.show(now, 1)


def first_snapshot(count: int) -> Snapshot:
    """Return random predictions of `count` nodes."""
    probabilities = np.random.default_rng(0).dirichlet(np.ones(len(CLASSES)), size=count)
    live = np.ones(count, dtype=np.bool_)
    return Snapshot(1, probabilities, live, Edges(ring(count), live))


def ring(count: int) -> sp.csr_array:
    """Return a ring: each node is joined to the next, and the last to the first."""
    forward = np.roll(np.eye(count), 1, axis=1)
    return sp.csr_array(forward + forward.T)


def _repairs(settings: Settings) -> bool:
    return settings.repair == "always"


async def _info() -> ModelInfo:
    return INFO


async def _unset() -> list[Check]:
    return []


async def _serve(database_url: str, home: Path) -> None:
    """Print the address and a key with all scopes, then serve until SIGTERM."""
    async with serving(database_url, home) as api:
        # As at the unlearner's start, so that a checkpoint exists.
        await LogSigner(api.engine, LogKeys.open(home / "keys"), UnlearningMetrics(CollectorRegistry())).sign_pending()
        bound = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(api.app, log_config=None, access_log=False, lifespan="off"))
        _, key = await api.key(*Scope)
        sys.stdout.write(f"http://127.0.0.1:{bound.getsockname()[1]} {key}\n")
        sys.stdout.flush()
        await server.serve(sockets=[bound])


if __name__ == "__main__":
    configure_logging("json", "warning", process="api-0")
    asyncio.run(_serve(sys.argv[1], Path(sys.argv[2])))
