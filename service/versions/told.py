"""What the versions published with noise have told so far: the ledger of one model, read from its versions."""

from sqlalchemy import or_, select

from projector.certified.ledger import Ledger, Spent
from projector.certified.publication import Publication
from projector.errors import PromiseError
from service.db.engine import Connection
from service.unlearning.placement import NotPublishable
from service.versions.versions import VersionRow


class Told:
    """Counts each version before it is committed, so that none is published that was not counted.

    A number that no version has is that of one that a restored database does not know: it counts as published, and as
    one in which somebody was deleted.
    """

    def __init__(self) -> None:
        self._ledger = Ledger()
        #: The first version without somebody to whom the promise was made; None while there is nobody.
        self._oldest: int | None = None

    async def load(self, connection: Connection, model: str) -> None:
        """Read what was committed of a model; what was counted and not committed was not published."""
        self._ledger, self._oldest = Ledger(), None
        mu = VersionRow.__table__.c.publication_mu
        deletes = or_(VersionRow.deleted_nodes > 0, VersionRow.deleted_features > 0, VersionRow.deleted_edges > 0)
        query = select(VersionRow.number, mu, deletes.label("deletes")).where(VersionRow.model == model)
        before: int | None = None
        for row in await connection.execute(query.order_by(VersionRow.number)):
            if row.publication_mu is not None:
                self._record_lost(row.number if before is None else before + 1, row.number, row.publication_mu)
                self._ledger.record(row.number, row.publication_mu)
                if row.deletes and self._oldest is None:
                    self._oldest = row.number
            before = row.number

    def count(self, number: int, publication: Publication, *, before: int, deletes: bool) -> Spent:
        """Count version `number`, made from `before`, and return what everybody deleted then stands at, at most.

        Raises NotPublishable.
        """
        self._record_lost(max(before, self._ledger.newest) + 1, number, publication.mechanism.mu)
        oldest = self._oldest if self._oldest is not None or not deletes else number
        try:
            # Whoever is deleted later is told less of.
            self._ledger.add(number, publication.mechanism, number if oldest is None else oldest)
        except PromiseError as error:
            raise NotPublishable(
                f"What is promised of published weights allows no further version: {error.detail}",
                "Serve with a larger --certify-publications while some are left, or promise a larger epsilon.",
            ) from error
        self._oldest = oldest
        return self.standing(publication)

    def standing(self, publication: Publication) -> Spent:
        """What everybody deleted so far stands at, at most, as a share of what `publication` promises."""
        return self._ledger.since(self._oldest or 2**63 - 1, publication.mechanism.budget)

    def _record_lost(self, first: int, end: int, mu: float) -> None:
        for number in range(first, end):
            self._ledger.record(number, mu)
            if self._oldest is None:
                self._oldest = first
