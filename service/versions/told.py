"""What the versions published with noise have told so far: the ledger of one model, read from its versions."""

from sqlalchemy import or_, select

from projector.certified.ledger import Ledger, Spent
from projector.certified.mechanism import budget_of
from projector.certified.publication import Promise, Publication
from projector.errors import PromiseError
from service.db.engine import Connection
from service.unlearning.placement import NotPublishable
from service.versions.versions import VersionRow


class Told:
    """Counts each version before it is committed, so that none is published that was not counted.

    Whoever is deleted keeps the promise that was in force then, whatever is promised later. A version without noise
    ends all that was promised before it.

    A number that no version has is that of one that a restored database does not know: it counts as published, with
    the largest mu that is known by then, and as one in which somebody was deleted.
    """

    def __init__(self) -> None:
        self._ledger = Ledger()
        #: The last version that the database has, however it was published.
        self._newest = 0
        #: The largest mu of one version so far.
        self._largest_mu = 0.0
        #: Of each promise, the first version without somebody to whom it was made. Replaced, and not changed: other
        #: threads read it.
        self._promised: dict[Promise, int] = {}

    async def load(self, connection: Connection, model: str) -> None:
        """Read what was committed of a model; what was counted and not committed was not published."""
        self._ledger, self._newest, self._largest_mu, self._promised = Ledger(), 0, 0.0, {}
        of = VersionRow.__table__.c
        deletes = or_(of.deleted_nodes > 0, of.deleted_features > 0, of.deleted_edges > 0)
        promise = of.publication_epsilon, of.publication_delta, of.publications_planned
        query = select(of.number, of.publication_mu, deletes.label("deletes"), *promise).where(of.model == model)
        for row in await connection.execute(query.order_by(of.number)):
            if row.publication_mu is None:
                self._promised = {}
            else:
                promised = Promise(row.publication_epsilon, row.publication_delta, row.publications_planned)
                self._record_lost(row.number, row.publication_mu, promised)
                self._ledger.record(row.number, row.publication_mu)
                if row.deletes:
                    self._promise(promised, row.number)
            self._newest = row.number

    def count(self, number: int, publication: Publication, *, deletes: bool) -> Spent:
        """Count version `number`, and return what everybody deleted then stands at, at most.

        Raises NotPublishable.
        """
        self._record_lost(number, publication.mechanism.mu, publication.promise)
        before = self._promised
        if deletes:
            self._promise(publication.promise, number)
        try:
            self._ledger.add(number, publication.mechanism.mu, self._budgets(publication))
        except PromiseError as error:
            self._promised = before
            raise NotPublishable(
                f"What is promised of published weights allows no further version: {error.detail}",
                "Plan more with --certify-publications while some are left. Once none is, only weights without noise "
                "can be published: start without --certify, which ends what was promised.",
            ) from error
        return self.standing(publication)

    def standing(self, publication: Publication) -> Spent:
        """What everybody deleted so far stands at, at most, as a share of what was promised to them."""
        budgets = self._budgets(publication) or [(2**63 - 1, publication.mechanism.budget)]
        return max((self._ledger.since(*each) for each in budgets), key=lambda spent: spent.share)

    def _budgets(self, publication: Publication) -> list[tuple[int, float]]:
        """Of each promise, the first version without somebody to whom it was made, and its mu."""
        weights = publication.mechanism.weights
        return [(first, budget_of(promise, weights)) for promise, first in self._promised.items()]

    def _promise(self, promise: Promise, number: int) -> None:
        self._promised = {promise: number} | self._promised

    def _record_lost(self, version: int, mu: float, promise: Promise) -> None:
        """Count those between the last known version and `version`, which itself is published with `mu`."""
        self._largest_mu = max(self._largest_mu, mu)
        first = max(self._newest, self._ledger.newest) + 1
        for number in range(first, version):
            self._ledger.record(number, self._largest_mu)
            self._promise(promise, first)
