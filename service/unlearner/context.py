"""Shared dependencies of the unlearner, and its privacy ledger."""

import asyncio
import contextvars
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
from service.ledger.erasure_ledger import ErasureLedger
from service.observability.metrics import UnlearningMetrics
from service.predictions.version_rows import BatchRow, VersionRow
from service.predictions.writer import Publisher
from service.queue.outage import Outage
from service.settings import Settings
from service.unlearner.placement import NotPublishable, Placement, chosen_device, promised


class PrivacyLedger:
    """Counts each version before its commit, so that no uncounted version is published.

    A number without a known version may belong to a version that a restored database lost. It counts as published with
    the largest mu known so far, and as a deletion.
    """

    def __init__(self) -> None:
        self._ledger = Ledger()
        #: The latest version in the database, published with noise or not.
        self._newest = 0
        #: The largest mu of a single version so far.
        self._largest_mu = 0.0
        #: The first version that deleted someone, from which the promise counts; None while there is none.
        self._oldest: int | None = None

    async def load(self, connection: Connection, model: str) -> None:
        """Read the committed versions of a model. A version counted but not committed was not published."""
        self._ledger, self._newest, self._largest_mu, self._oldest = Ledger(), 0, 0.0, None
        mu = VersionRow.__table__.c.publication_mu
        batches, parts = BatchRow.__table__.c, ("deleted_nodes", "deleted_features", "deleted_edges", "deleted_labels")
        # Replaced values are deleted as well.
        replaces = (batches.features_joined > 0, batches.labels_joined > 0)
        deletes = or_(*(VersionRow.__table__.c[part] > 0 for part in parts), *replaces)
        query = select(VersionRow.number, mu, deletes.label("deletes")).where(VersionRow.model == model)
        query = query.outerjoin(BatchRow, batches.id == VersionRow.id)
        for row in await connection.execute(query.order_by(VersionRow.number)):
            if row.publication_mu is not None:
                self._record_lost(row.number, row.publication_mu)
                self._ledger.record(row.number, row.publication_mu)
                if row.deletes and self._oldest is None:
                    self._oldest = row.number
            self._newest = row.number

    def count(self, number: int, publication: Publication, *, deletes: bool) -> Spent:
        """Count version `number` and return the resulting maximum spend for everyone deleted.

        Raises NotPublishable.
        """
        self._record_lost(number, publication.mechanism.mu)
        oldest = self._oldest if self._oldest is not None or not deletes else number
        try:
            # Those deleted later are affected by fewer versions.
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
        """Return the maximum spend for everyone deleted so far, as a share of the promise of `publication`."""
        return self._ledger.since(self._oldest or 2**63 - 1, publication.mechanism.budget)

    def _record_lost(self, version: int, mu: float) -> None:
        """Count the numbers between the last known version and `version`, which is published with `mu`."""
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
    #: Single-threaded: runs blocking disk and device work in order.
    executor: Executor
    outage: Outage
    placement: Placement
    #: Name of the model.
    model: str
    #: Maximum repair time before a batch is served from its projected weights (seconds).
    repair_budget_s: float
    #: Set to stop the unlearner after the current work.
    stop: asyncio.Event
    #: The tombstones outside of home and database; None without.
    erasures: ErasureLedger | None = None
    #: Counts the published versions; reloaded whenever a version is loaded.
    ledger: PrivacyLedger = field(default_factory=PrivacyLedger)
    #: Progress of the executor's work.
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
        """Build from the settings; outages are reported under `name`."""
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
            erasures=ErasureLedger.of(settings.ledger, settings.home, model),
            work=Work() if work is None else work,
        )

    async def run(self, work: Callable[[], T]) -> T:
        """Run blocking `work` on the executor, off the event loop, so that the lease is renewed meanwhile."""
        return await asyncio.get_running_loop().run_in_executor(self.executor, contextvars.copy_context().run, work)

    async def retry(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Retry until an attempt succeeds; see `Outage.retry`."""
        return await self.outage.retry(attempt, self.stop)
