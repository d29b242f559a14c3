"""Refusals by the schema itself, whatever the code above it does."""

from uuid import uuid4

import pytest
from sqlalchemy.exc import DBAPIError

from service.db.transactions import transaction
from service.domain.states import TRANSITIONS, EventType, RequestStatus
from service.log.events import EventRepository
from tests.support.service.db_harness import MODEL, Database, Said

#: For each status, the columns of a legal row.
LEGAL = {
    RequestStatus.QUEUED: "failed_at = NULL, failure = NULL",
    RequestStatus.APPLIED: (
        "batch_id = :batch, applied_at = now(), guarantee = 'span', repair = 'none', explanation = 'x'"
    ),
    RequestStatus.COMPLETED: "completed_at = now(), ciphertext = NULL, explanation = 'x'",
    RequestStatus.FAILED: "failed_at = now(), failure = 'x'",
    RequestStatus.CANCELLED: "cancelled_at = now(), ciphertext = NULL",
}
#: Values that make a row of that status illegal.
ILLEGAL = [
    (RequestStatus.QUEUED, "ciphertext = NULL"),
    (RequestStatus.QUEUED, "completed_at = now()"),
    (RequestStatus.QUEUED, "applied_at = now()"),
    (RequestStatus.QUEUED, "failed_at = now()"),
    (RequestStatus.QUEUED, "failure = 'x'"),
    (RequestStatus.QUEUED, "cancelled_at = now()"),
    (RequestStatus.QUEUED, "guarantee = 'span'"),
    (RequestStatus.QUEUED, "repair = 'none'"),
    (RequestStatus.QUEUED, "status = 'lost'"),
    (RequestStatus.QUEUED, "kind = 'graph'"),
    (RequestStatus.QUEUED, "count = 0"),
    (RequestStatus.QUEUED, "model = 'unknown'"),
    (RequestStatus.QUEUED, "batch_id = gen_random_uuid()"),
    (RequestStatus.QUEUED, "already_deleted_by = id"),
    (RequestStatus.QUEUED, "idempotency_key = 'k'"),
    (RequestStatus.QUEUED, "idempotency_key = 'k', body_digest = '\\x00'"),
    (RequestStatus.APPLIED, "applied_at = NULL"),
    (RequestStatus.APPLIED, "batch_id = NULL"),
    (RequestStatus.APPLIED, "guarantee = NULL"),
    (RequestStatus.APPLIED, "guarantee = 'certain'"),
    (RequestStatus.APPLIED, "repair = NULL"),
    (RequestStatus.APPLIED, "repair = 'soon'"),
    (RequestStatus.APPLIED, "explanation = NULL"),
    (RequestStatus.APPLIED, "completed_at = now()"),
    (RequestStatus.APPLIED, "failed_at = now()"),
    (RequestStatus.COMPLETED, "completed_at = NULL"),
    (RequestStatus.COMPLETED, "ciphertext = '\\x01'"),
    (RequestStatus.COMPLETED, "batch_id = :batch"),
    (RequestStatus.FAILED, "failure = NULL"),
    (RequestStatus.FAILED, "failed_at = NULL"),
    (RequestStatus.FAILED, "batch_id = :batch"),
    (RequestStatus.CANCELLED, "cancelled_at = NULL"),
    (RequestStatus.CANCELLED, "ciphertext = '\\x01'"),
    (RequestStatus.CANCELLED, "batch_id = :batch"),
]


class Rows:
    """Requests in each status, with manual transitions."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.batch = uuid4()
        self.earlier = uuid4()

    async def begin(self) -> None:
        self.batch = await self._db.batch([await self._db.accept()])
        self.earlier = await self._db.accept()

    async def change(self, request_id: object, assignments: str) -> None:
        values = {"id": request_id} | ({"batch": self.batch} if ":batch" in assignments else {})
        await self._db.rows(f"UPDATE requests SET {assignments} WHERE id = :id", **values)

    async def move(self, request_id: object, old: RequestStatus, new: RequestStatus) -> None:
        assignments = f"status = '{new}', {LEGAL[new]}"
        if new is RequestStatus.COMPLETED and old is not RequestStatus.APPLIED:
            assignments += f", already_deleted_by = '{self.earlier}'"
        await self.change(request_id, assignments)

    async def make(self, status: RequestStatus) -> object:
        request_id = await self._db.accept()
        if status is not RequestStatus.QUEUED:
            await self.move(request_id, RequestStatus.QUEUED, status)
        return request_id


@pytest.fixture
async def rows(db: Database) -> Rows:
    made = Rows(db)
    await made.begin()
    return made


async def test_exactly_the_transitions_of_the_domain_are_possible(db: Database, rows: Rows) -> None:
    possible: dict[RequestStatus, set[RequestStatus]] = {status: set() for status in RequestStatus}
    refused: set[str] = set()
    for old in RequestStatus:
        for new in RequestStatus:
            request_id = await rows.make(old)
            try:
                await rows.move(request_id, old, new)
            except DBAPIError as error:
                refused.add(str(error.orig).rpartition(" cannot ")[2])
            else:
                possible[old] |= {new} - {old}
    # Each is refused as a transition, not because this test set a column wrongly.
    assert refused == {
        f"go from {old} to {new}" for old in RequestStatus for new in set(RequestStatus) - TRANSITIONS[old] - {old}
    }
    assert possible == {status: set(following) for status, following in TRANSITIONS.items()}


async def test_a_row_that_contradicts_its_status_is_refused(db: Database, rows: Rows) -> None:
    made = {status: await rows.make(status) for status in RequestStatus}
    before = await db.rows("SELECT * FROM requests ORDER BY id")
    for status, assignments in ILLEGAL:
        with pytest.raises(DBAPIError, match=r"requests_\w+_(check|fkey)|cannot go from"):
            await rows.change(made[status], assignments)
    assert await db.rows("SELECT * FROM requests ORDER BY id") == before


async def test_a_request_cannot_be_inserted_past_its_beginning(db: Database) -> None:
    for status in [status for status in RequestStatus if status is not RequestStatus.QUEUED]:
        with pytest.raises(DBAPIError, match="begins as queued"):
            await db.rows(
                "INSERT INTO requests (id, model, kind, status, count, ciphertext, api_key_id)"
                " VALUES (gen_random_uuid(), :model, 'node', :status, 1, '\\x01', :key)",
                model=MODEL,
                status=status.value,
                key=db.api_key_id,
            )


async def test_a_request_has_one_applied_and_one_completed_event(db: Database) -> None:
    request_id = await db.accept()
    insert = "INSERT INTO events (request_id, type, payload) VALUES (:id, :kind, '{}')"
    for kind in ("applied", "completed"):
        async with transaction(db.engine) as conn:
            await EventRepository(conn).append_many(EventType(kind), {request_id: Said()})
        with pytest.raises(DBAPIError, match=f"events_{kind}_once"):
            await db.rows(insert, id=request_id, kind=kind)


async def test_a_batch_with_figures_that_cannot_be_is_refused(db: Database) -> None:
    await db.batch([await db.accept()])
    for assignments in [
        "distance_bound_after = 'NaN'",
        "repair_tolerance = 2e-6",
        "distance_bound_after = 'Infinity'",
        "repair_weight_change = -1",
        "finished_at = now()",
        "finished_at = now(), span_residual = 'NaN'",
        "weights_sha256 = 'abc'",
        "number = number_before",
        "cause = 'guess'",
        "durations_ms = '[]'",
        "directions_removed = -1",
        "requests = -1",
        "deleted_features = -1",
        "deleted_edges = -1",
        "deleted_labels = -1",
        "model = 'unknown'",
    ]:
        with pytest.raises(DBAPIError, match=r"versions_\w+|figure_check|hex_digest_check"):
            await db.rows(f"UPDATE versions SET {assignments}")
    for assignments in [
        "factor_method = 'guess'",
        "weight_change = 'NaN'",
        "weight_change = 'Infinity'",
        "weight_change = -1",
        "weight_change = NULL",
        "rank_before = -1",
        "factor_age_s = -1",
    ]:
        with pytest.raises(DBAPIError, match=r"batches_\w+|weight_change|figure_check"):
            await db.rows(f"UPDATE batches SET {assignments}")


async def test_a_request_of_a_batch_has_something_that_the_batch_deleted_for_it(db: Database) -> None:
    await db.batch([await db.accept()])
    with pytest.raises(DBAPIError, match="request_audits_deleted_check"):
        await db.rows("UPDATE request_audits SET deleted = 0")


async def test_a_pointer_only_moves_forward(db: Database) -> None:
    await db.rows("UPDATE pointers SET version = 5, fencing = 2, folder = '5-2'")
    for assignments in [
        "version = version - 1, folder = '4-2'",
        "digest = repeat('e', 64)",
        "version = 6, fencing = 1, folder = '6-1'",
    ]:
        with pytest.raises(DBAPIError, match="only moves forward"):
            await db.rows(f"UPDATE pointers SET {assignments}")


async def test_a_pointer_names_its_folder_and_a_digest(db: Database) -> None:
    for assignments in ["version = 1, folder = 'x'", "version = 1, folder = '1-0', digest = 'A'"]:
        with pytest.raises(DBAPIError, match=r"pointers_folder_check|hex_digest_check"):
            await db.rows(f"UPDATE pointers SET {assignments}")


async def test_a_lease_changes_hands_only_with_a_greater_fencing_number(db: Database) -> None:
    await db.rows("INSERT INTO leases VALUES ('l', 'holder', 5, now())")
    for assignments in ["fencing = 4", "holder = 'other'", "fencing = 4, holder = 'other'"]:
        with pytest.raises(DBAPIError, match="greater fencing number"):
            await db.rows(f"UPDATE leases SET {assignments}")
    await db.rows("UPDATE leases SET fencing = 6, holder = 'other'")


async def test_an_api_key_has_a_name_known_scopes_and_a_whole_hash(db: Database) -> None:
    for values in [
        "'n', '{}', decode(repeat('ab', 32), 'hex')",
        "'n', '{audit:read,everything}', decode(repeat('ab', 32), 'hex')",
        "'', '{audit:read}', decode(repeat('ab', 32), 'hex')",
        "'n', '{audit:read}', '\\xab'",
    ]:
        with pytest.raises(DBAPIError, match=r"api_keys_\w+_check"):
            await db.rows(f"INSERT INTO api_keys (id, name, scopes, hash) VALUES (gen_random_uuid(), {values})")
