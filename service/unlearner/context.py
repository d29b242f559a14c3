"""What every part of the unlearner works with, given once; the privacy ledger among it."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TypeVar

from sqlalchemy import or_, select

from model_store.work import Work
from projector.certified.ledger import Ledger, Spent
from projector.certified.publication import Publication
from projector.errors import PromiseError
from service.access.key_disposal import UnneededKeys
from service.access.keyring import Keyring
from service.access.request_keys import RequestKeys
from service.db.engine import Connection, Engine
from service.domain.states import RepairPolicy
from service.observability.metrics import UnlearningMetrics
from service.predictions.version_rows import VersionRow
from service.predictions.writer import Publisher
from service.queue.outage import Outage
from service.settings import Settings
from service.unlearner.placement import NotPublishable, Placement, chosen_device, promised


class PrivacyLedger:
    """Counts each version before it is committed, so that none is published that was not counted.

    A number that no version has is that of one that a restored database does not know: it counts as published, with
    the largest mu that is known by then, and as one in which somebody was deleted.
    """

    def __init__(self) -> None:
        self._ledger = Ledger()
        #: The last version that the database has, however it was published.
        self._newest = 0
        #: The largest mu of one version so far.
        self._largest_mu = 0.0
        #: The first version without somebody to whom the promise was made; None while there is nobody.
        self._oldest: int | None = None

    async def load(self, connection: Connection, model: str) -> None:
        """Read what was committed of a model; what was counted and not committed was not published."""
        self._ledger, self._newest, self._largest_mu, self._oldest = Ledger(), 0, 0.0, None
        mu = VersionRow.__table__.c.publication_mu
        deletes = or_(VersionRow.deleted_nodes > 0, VersionRow.deleted_features > 0, VersionRow.deleted_edges > 0)
        query = select(VersionRow.number, mu, deletes.label("deletes")).where(VersionRow.model == model)
        for row in await connection.execute(query.order_by(VersionRow.number)):
            if row.publication_mu is not None:
                self._record_lost(row.number, row.publication_mu)
                self._ledger.record(row.number, row.publication_mu)
                if row.deletes and self._oldest is None:
                    self._oldest = row.number
            self._newest = row.number

    def count(self, number: int, publication: Publication, *, deletes: bool) -> Spent:
        """Count version `number`, and return what everybody deleted then stands at, at most.

        Raises NotPublishable.
        """
        self._record_lost(number, publication.mechanism.mu)
        oldest = self._oldest if self._oldest is not None or not deletes else number
        try:
            # Whoever is deleted later is told less of.
            self._ledger.add(number, publication.mechanism, number if oldest is None else oldest)
        except PromiseError as error:
            raise NotPublishable(
                f"The promise about published weights allows no further version: {error.detail}",
                "Plan more with --certify-publications while some are left. A larger epsilon allows more, but "
                "weakens the promise to everyone deleted before.",
            ) from error
        self._oldest = oldest
        return self.standing(publication)

    def standing(self, publication: Publication) -> Spent:
        """What everybody deleted so far stands at, at most, as a share of what `publication` promises."""
        return self._ledger.since(self._oldest or 2**63 - 1, publication.mechanism.budget)

    def _record_lost(self, version: int, mu: float) -> None:
        """Count those between the last known version and `version`, which itself is published with `mu`."""
        self._largest_mu = max(self._largest_mu, mu)
        first = max(self._newest, self._ledger.newest) + 1
        for number in range(first, version):
            self._ledger.record(number, self._largest_mu)
            if self._oldest is None:
                self._oldest = first


T = TypeVar("T")


@dataclass(frozen=True, eq=False, kw_only=True)
class Context:
    """The servers, keys, publication and threads of one unlearner, the same under every lease."""

    engine: Engine
    keyring: Keyring
    request_keys: RequestKeys
    unneeded_keys: UnneededKeys
    publisher: Publisher
    metrics: UnlearningMetrics
    #: Of one thread: what blocks, on the disk or the device, is done there, one thing after the other.
    executor: Executor
    outage: Outage
    placement: Placement
    #: Name of the model.
    model: str
    #: How long a batch may be repaired before it is served from its projected weights (seconds).
    repair_budget_s: float
    #: Set when the unlearner is to end after what is under way.
    stop: asyncio.Event
    #: What published versions have told; read again whenever a version is loaded.
    ledger: PrivacyLedger = field(default_factory=PrivacyLedger)
    #: What the executor is doing, for those who wait.
    work: Work = field(default_factory=Work)

    @classmethod
    def of(
        cls,
        settings: Settings,
        engine: Engine,
        keyring: Keyring,
        request_keys: RequestKeys,
        model: str,
        *,
        name: str,
        metrics: UnlearningMetrics,
        executor: Executor,
        repair_budget_s: float,
        stop: asyncio.Event,
        work: Work | None = None,
    ) -> "Context":
        """As the settings say, for what calls itself `name` when it reports an outage."""
        return cls(
            engine=engine,
            keyring=keyring,
            request_keys=request_keys,
            unneeded_keys=UnneededKeys(engine, request_keys),
            publisher=Publisher(settings.home, settings.share),
            metrics=metrics,
            executor=executor,
            outage=Outage(name),
            placement=Placement(
                chosen_device(settings.device),
                RepairPolicy(settings.repair),
                settings.repair_tolerance,
                settings.factor_age,
                promised(settings.certified, settings.certify_publications),
            ),
            model=model,
            repair_budget_s=repair_budget_s,
            stop=stop,
            work=Work() if work is None else work,
        )

    async def run(self, work: Callable[[], T]) -> T:
        """Blocking `work` on the executor, off the event loop, so that the lease is renewed meanwhile."""
        return await asyncio.get_running_loop().run_in_executor(self.executor, work)

    async def retry(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Makes attempts until one succeeds; see `Outage.retry`."""
        return await self.outage.retry(attempt, self.stop)
