"""Fills an empty database with a year of synthetic audit data: requests, batches, events and their log.

Every row satisfies the schema's own constraints. The transparency log is complete, with the leaves, hashes and roots
that the service would have written, so `./lethe audit verify` finds no errors. The content of requests is random bytes.
Postgres itself generates requests, batches and events (generate_series). The log is streamed out of the events and
copied back in.

    python -m benchmarks.performance.audit.events DATABASE_URL [--events 1000000] [--days 365]
"""

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import asyncpg

from projector.forgetting.status import RepairStatus
from service.db import migrate
from service.domain.kinds import RequestKind
from service.domain.records import DeletionRequest
from service.domain.states import EventType, Guarantee, RequestStatus
from service.log.commitments import Commitments
from service.log.leaves import LoggedEvent, leaf_data
from service.log.merkle import Frontier, leaf_hash
from service.processes.private_servers import Embedded

MODEL = "generated"
NODES = 10_000_000
#: Requests in a batch, and the number of latest requests that are left waiting.
BATCH = 4
WAITING = 200

#: Of a thousand requests, 10 fail, 2 are cancelled, 8 are projected only, 4 are repaired without converging, and the
#: others have all three events. The sum is events per thousand requests.
EVENTS_PER_THOUSAND = 10 * 1 + 2 * 0 + (8 + 4) * 2 + (1000 - 10 - 2 - 8 - 4) * 3

_GENERATED = """
    CREATE TEMPORARY TABLE generated ON COMMIT DROP AS
    SELECT i, i / $5::int AS batch, md5('request ' || i)::uuid AS id,
           CASE WHEN i >= $1::int - $6::int THEN 'queued'
                WHEN i % 1000 IN (100, 200, 300, 400, 500, 600, 700, 800, 900, 999) THEN 'failed'
                WHEN i % 1000 IN (333, 777) THEN 'cancelled'
                ELSE 'completed' END AS status,
           CASE WHEN i % 1000 BETWEEN 8 AND 15 THEN 'none'
                WHEN i % 1000 BETWEEN 16 AND 19 THEN 'not_converged'
                ELSE 'converged' END AS repair,
           CASE i % 10 WHEN 0 THEN 'edge' WHEN 1 THEN 'features' ELSE 'node' END AS kind,
           $2::timestamptz + i * ($3::timestamptz - $2::timestamptz) / $1::int AS received_at,
           0.2 + 2 * random() * random() + CASE WHEN random() < 0.01 THEN 600 * random() ELSE 0 END
               + CASE WHEN i % 500 = 250 AND i < $1::int / 2 THEN $7::float * 86400 ELSE 0 END AS applying,
           0.1 + random() AS erasing
    FROM generate_series(0, $1::int - 1) i, (SELECT setseed($4)) seed
"""
_POINTER = """
    INSERT INTO pointers (model, version, fencing, folder, digest, weights_sha256)
    SELECT $1, v, 1, v || '-1', repeat('a', 64), encode(sha256(('weights ' || v)::bytea), 'hex')
    FROM (SELECT max(batch) + 1 AS v FROM generated WHERE status = 'completed') newest
"""
_API_KEY = """
    INSERT INTO api_keys (id, name, scopes, hash)
    VALUES (md5('key')::uuid, 'generated', ARRAY['deletions:write'], sha256('key'))
"""
_OF_BATCHES = """
        SELECT batch, count(*)::int AS requests, count(*) FILTER (WHERE kind = 'node')::int AS nodes,
               count(*) FILTER (WHERE kind = 'features')::int AS features,
               count(*) FILTER (WHERE kind = 'edge')::int AS edges,
               (batch % 1000 = 999)::int AS lost, min(repair) AS repair, max(received_at) AS committed_at
        FROM generated WHERE status = 'completed' GROUP BY batch
"""
_VERSIONS = f"""
    INSERT INTO versions (id, model, number, fencing, cause, folder, digest, weights_sha256, number_before,
        weights_sha256_before, rank, live_nodes, edges, device, durations_ms, requests, deleted_nodes, deleted_features,
        deleted_edges, deleted_labels, directions_removed, span_residual, distance_bound_before, distance_bound_after,
        distance_bound_before_relative, distance_bound_after_relative, repair, repair_version, repair_iterations,
        repair_weight_change, committed_at, finished_at)
    SELECT md5('batch ' || batch)::uuid, $1, batch + 1, 1, 'batch', batch + 1 || '-1', repeat('a', 64),
           encode(sha256(('weights ' || batch + 1)::bytea), 'hex'), batch,
           encode(sha256(('weights ' || batch)::bytea), 'hex'), 1433 - (batch + 1) / 1000,
           $2::int - sum(nodes) OVER (ORDER BY batch), 5000, 'cpu',
           '{{"project": 1.9, "repair": 12.5, "write": 4.1, "swap": 0.6, "erase": 8.2, "verify": 3.3}}', requests,
           nodes, features, edges, 0, lost, 1e-15 * (1 + random()), 1.5, 1e-9, 0.05 * random(),
           CASE repair WHEN 'converged' THEN 1e-10 * random() ELSE 0.01 * random() END, repair,
           CASE repair WHEN 'converged' THEN batch + 1 END, 5, 0.01, committed_at, committed_at + interval '0.1 s'
    FROM ({_OF_BATCHES}) batches
"""
_BATCHES = f"""
    INSERT INTO batches (id, rank_before, weight_change, coefficient_residual, lost_direction_norm_before,
        lost_direction_norm_after, factor_method, nodes_joined, edges_joined, features_joined, labels_joined,
        directions_gained)
    SELECT md5('batch ' || batch)::uuid, 1433 - batch / 1000, 0.01 + 0.01 * random(), 1e-15,
           CASE lost WHEN 1 THEN 0.1 END, CASE lost WHEN 1 THEN 1e-15 END, 'downdate',
           0, 0, 0, 0, 0
    FROM ({_OF_BATCHES}) batches
"""
_REQUESTS = """
    INSERT INTO requests (id, model, kind, status, count, reference, ciphertext, api_key_id, received_at, batch_id,
        applied_at, completed_at, failed_at, cancelled_at, guarantee, repair, explanation, failure,
        subject_commitments, reference_commitment)
    SELECT id, $1, kind, status, 1, CASE i % 10 WHEN 5 THEN 'DSR-shared' ELSE 'DSR-' || i END,
           CASE WHEN status IN ('queued', 'failed') THEN sha256(id::text::bytea) END,
           md5('key')::uuid, received_at, CASE status WHEN 'completed' THEN md5('batch ' || batch)::uuid END,
           CASE status WHEN 'completed' THEN received_at + applying * interval '1 s' END,
           CASE status WHEN 'completed' THEN received_at + (applying + erasing) * interval '1 s' END,
           CASE status WHEN 'failed' THEN received_at + applying * interval '1 s' END,
           CASE status WHEN 'cancelled' THEN received_at + interval '10 ms' END,
           CASE WHEN status = 'completed' THEN CASE WHEN repair = 'converged' THEN 'retrained'
               WHEN kind = 'edge' THEN 'graph_only' ELSE 'span' END END,
           CASE status WHEN 'completed' THEN repair END,
           CASE status WHEN 'completed' THEN 'The projection changed nothing: every direction of the deleted features'
               ' is also present in the features of nodes that remain, so the weights already lay in the span of what'
               ' remains. The graph, the predictions and the coefficients no longer contain the deleted node.' END,
           CASE status WHEN 'failed' THEN 'The model has no such edge any more.' END,
           CASE status WHEN 'cancelled' THEN NULL ELSE
               CASE kind WHEN 'edge' THEN sha512(id::text::bytea) ELSE sha256(id::text::bytea) END END,
           CASE status WHEN 'cancelled' THEN NULL ELSE sha256(('reference ' || i)::bytea) END
    FROM generated ORDER BY i
"""
_AUDITS = """
    INSERT INTO request_audits (request_id, batch_id, deleted, injected_norm_before, injected_norm_after)
    SELECT id, md5('batch ' || batch)::uuid, 1, norm, norm * 0
    FROM (SELECT *, CASE kind WHEN 'edge' THEN NULL ELSE exp(4 * random() - 4) END AS norm FROM generated
          WHERE status = 'completed' ORDER BY i) completed
"""
_EVENTS = """
    INSERT INTO events (request_id, type, payload, created_at)
    SELECT id, type, jsonb_build_object('batch', md5('batch ' || batch)::uuid, 'kind', kind, 'model_version_after',
               batch + 1, 'rank_after', 1433 - (batch + 1) / 1000, 'directions_removed', (batch % 1000 = 999)::int,
               'device', 'cpu', 'weight_change', 0.0125, 'span_residual', 1e-15, 'distance_bound_after_relative', 1e-10,
               'weights_sha256_after', encode(sha256(('weights ' || batch + 1)::bytea), 'hex')),
           received_at + (applying + CASE type WHEN 'completed' THEN erasing ELSE 0 END) * interval '1 s'
    FROM generated JOIN (VALUES (1, 'applied'), (2, 'repaired'), (3, 'completed'), (4, 'failed')) types (step, type)
        ON CASE status WHEN 'completed' THEN step <= 3 AND (step <> 2 OR repair = 'converged')
           WHEN 'failed' THEN step = 4 ELSE false END
    ORDER BY i, step
"""
_LOGGED = """
    SELECT e.id AS event_id, e.type, e.payload, e.created_at, r.id, r.model, r.kind, r.status, r.count, r.api_key_id,
           r.received_at, r.guarantee, r.repair, r.explanation, r.failure, r.subject_commitments, r.reference_commitment
    FROM events e JOIN requests r ON r.id = e.request_id ORDER BY e.id
"""
#: Triggers that restrict requests and events to the order in which the service writes them.
_TRIGGERS = (("requests", "requests_begin_queued"), ("events", "events_logged"))
_TABLES = (
    "requests",
    "versions",
    "batches",
    "request_audits",
    "request_search",
    "audit_counts",
    "audit_times",
    "events",
    "leaves",
    "log_nodes",
    "pointers",
    "api_keys",
)
_COPIED = 20_000


class NotEmpty(Exception):
    """The database has requests. Generating into it could damage a real audit."""


@dataclass(frozen=True)
class Generated:
    """The generated amounts."""

    requests: int
    events: int
    seconds: float


@contextmanager
def database(url: str | None, folder: Path) -> Iterator[str]:
    """Yield the given database, or a private server below `folder`."""
    if url:
        yield url
        return
    with Embedded(folder / "servers", valkey=False) as servers:
        assert servers.database_url is not None
        yield servers.database_url


async def generate(
    database_url: str,
    *,
    events: int,
    days: int,
    until: datetime | None = None,
    model: str = MODEL,
    slow_days: float = 0.0,
) -> Generated:
    """Migrate the database and fill it with at least `events` events of requests received in the `days` before `until`.

    `until` defaults to now. In the older half, two requests in a thousand take `slow_days` longer. The same arguments
    make the same rows. Requires the database's owner; raises `NotEmpty`.
    """
    started = time.monotonic()
    await migrate.upgrade(database_url)
    connection = await asyncpg.connect(database_url)
    try:
        await connection.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        async with connection.transaction():
            if await connection.fetchval("SELECT EXISTS (SELECT FROM requests)"):
                raise NotEmpty("The database has requests; give an empty one.")
            for table, trigger in _TRIGGERS:
                await connection.execute(f"ALTER TABLE {table} DISABLE TRIGGER {trigger}")
            requests = -(-events * 1000 // EVENTS_PER_THOUSAND) + 1000 + WAITING
            await _rows(connection, model, requests, days, until, slow_days)
            await _log(connection)
            for table, trigger in _TRIGGERS:
                await connection.execute(f"ALTER TABLE {table} ENABLE TRIGGER {trigger}")
        for table in _TABLES:
            await connection.execute(f"VACUUM (ANALYZE) {table}")
        # Its rows were all rewritten several times, which leaves free space that no service would leave.
        await connection.execute("VACUUM (FULL, ANALYZE) request_search")
        made = await connection.fetchval("SELECT count(*) FROM events")
    finally:
        await connection.close()
    return Generated(requests, made, time.monotonic() - started)


async def _rows(
    connection: asyncpg.Connection, model: str, requests: int, days: int, until: datetime | None, slow_days: float
) -> None:
    newest = until or await connection.fetchval("SELECT now()")
    oldest = await connection.fetchval("SELECT $1::timestamptz - $2 * interval '1 day'", newest, days)
    await connection.execute(_GENERATED, requests, oldest, newest, 0.5, BATCH, WAITING, slow_days)
    await connection.execute(_POINTER, model)
    await connection.execute(_API_KEY)
    await connection.execute(_VERSIONS, model, NODES)
    await connection.execute(_BATCHES)
    await connection.execute(_REQUESTS, model)
    await connection.execute(_AUDITS)
    await connection.execute(_EVENTS)


async def _log(connection: asyncpg.Connection) -> None:
    """Write the leaf of every event and the hashes above them, as `LogRepository.append` does."""
    tree = Frontier()
    async for page in _pages(connection):
        leaves, nodes = [], []
        for event in page:
            index = tree.size
            data = leaf_data(index, event)
            digest = leaf_hash(data)
            nodes += [(subtree.level, subtree.position, hashed) for subtree, hashed in tree.append(digest)]
            leaves.append((index, event.id, data.decode(), digest, tree.root))
        await connection.copy_records_to_table("leaves", records=leaves)
        await connection.copy_records_to_table("log_nodes", records=nodes)


async def _pages(connection: asyncpg.Connection) -> AsyncIterator[list[LoggedEvent]]:
    after = 0
    query = _LOGGED.replace("ORDER BY", "WHERE e.id > $1 ORDER BY") + f" LIMIT {_COPIED}"
    while rows := await connection.fetch(query, after):
        after = rows[-1]["event_id"]
        yield list(map(_event, rows))


def _event(row: asyncpg.Record) -> LoggedEvent:
    return LoggedEvent(
        id=row["event_id"],
        type=EventType(row["type"]),
        payload=row["payload"],
        created_at=row["created_at"],
        request=DeletionRequest(
            id=row["id"],
            model=row["model"],
            kind=RequestKind(row["kind"]),
            status=RequestStatus(row["status"]),
            count=row["count"],
            reference=None,
            api_key_id=row["api_key_id"],
            received_at=row["received_at"],
            due_at=row["received_at"],
            guarantee=None if row["guarantee"] is None else Guarantee(row["guarantee"]),
            repair=None if row["repair"] is None else RepairStatus(row["repair"]),
            explanation=row["explanation"],
            failure=row["failure"],
        ),
        commitments=Commitments(row["subject_commitments"], row["reference_commitment"]),
    )


def main() -> None:
    """Fill the given database and print the time taken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("database_url", help="postgresql://… of an empty database, as its owner")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--days", type=int, default=365)
    options = parser.parse_args()
    made = asyncio.run(generate(options.database_url, events=options.events, days=options.days))
    print(f"{made.events:,} events of {made.requests:,} requests in {made.seconds:.0f} s")


if __name__ == "__main__":
    main()
