"""What the routes work with, made once by the composition root and passed along on the application's state."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from prometheus_client import CollectorRegistry
from starlette.requests import Request

from projector.forgetting.canaries import Canaries
from projector.forgetting.repair import RepairProgress
from projector.forgetting.status import RepairStatus
from service.api.auth import KeyMemory
from service.api.limits import RateLimits
from service.api.replies import aside
from service.db.engine import Engine
from service.db.intake import Intake
from service.db.tombstones import TombstoneRepository
from service.db.transactions import transaction
from service.domain.states import Guarantee, RequestKind
from service.observability.metrics import UnlearningMetrics
from service.reader.predictions import Reader
from service.settings import Settings
from service.vault.keyring import Keyring

#: A node, or the two ends of an edge, by external id.
Subject = str | tuple[str, str]


@dataclass(frozen=True)
class ModelInfo:
    """The committed model, in figures; see `ModelAnswer` for what they mean."""

    name: str
    version: int
    nodes: int
    live_nodes: int
    edges: int
    features: int
    classes: tuple[str, ...]
    hops: int
    combine: str
    propagation: str
    loss: str
    regularization: float
    rank: int
    condition_number: float
    span_residual: float | None
    distance_bound: float | None
    distance_bound_relative: float | None
    repair: RepairStatus
    #: While `repair` is pending.
    repair_progress: RepairProgress | None
    guarantee: Guarantee
    device: str
    weights_sha256: str


@dataclass(frozen=True)
class Check:
    """One thing that must work for Lethe to be ready."""

    name: str
    ok: bool
    #: What was found; when not `ok`, what is wrong.
    detail: str
    #: What to do about it; empty when `ok`.
    remedy: str = ""


class Tombstones:
    """What was deleted, and by which request: looked up by keyed hash, under every tombstone key."""

    def __init__(self, engine: Engine, keyring: Keyring, model: str) -> None:
        self._engine = engine
        self._keyring = keyring
        self._model = model

    async def find(self, kind: RequestKind, subjects: Sequence[Subject]) -> dict[Subject, UUID | None]:
        """Each of `subjects` that a request of this kind deleted, with that request. Raises Unavailable.

        None stands for one that the database, restored from an older backup, does not have.
        """
        if not subjects:
            return {}
        by_hash = await aside(len(subjects), lambda: self._keyring.tombstone_hashes(self._model, kind, subjects))
        async with transaction(self._engine) as connection:
            found = await TombstoneRepository(connection).find(by_hash)
        return {by_hash[digest]: request_id for digest, request_id in found.items()}

    async def deleted_nodes(self, nodes: Sequence[str]) -> dict[str, UUID | None]:
        """Each of `nodes` that was deleted, as `find`. Raises Unavailable."""
        found = await self.find(RequestKind.NODE, nodes)
        return {node: request_id for node, request_id in found.items() if isinstance(node, str)}


@dataclass(frozen=True)
class Services:
    """Everything the routes reach."""

    settings: Settings
    #: Name of the model that is served; requests and tombstones belong to it.
    model: str
    engine: Engine
    intake: Intake
    keyring: Keyring
    keys: KeyMemory
    limits: RateLimits
    reader: Reader
    tombstones: Tombstones
    model_info: Callable[[], Awaitable[ModelInfo]]
    #: Those of the model that is served; None when it was trained without.
    canaries: Callable[[], Canaries | None]
    #: One check for each of device, Postgres, Redis, lease, keys, disk, migrations and the unlearner.
    readiness: Callable[[], Awaitable[Sequence[Check]]]
    #: What /metrics shows.
    registry: CollectorRegistry
    metrics: UnlearningMetrics


def services_of(request: Request) -> Services:
    """The services of the application that serves `request`."""
    services: Services = request.app.state.services
    return services
