"""Measures how much the audit's triggers and indexes slow down writes: a batch with and without them, in one run.

The script makes two copies of a database with a million events. From the second it removes all triggers and indexes
that only the audit's queries need. Batches of requests then run through both in turn (accepted, committed, applied,
completed), by the service's own repositories and with a log leaf for every event.

    python -m benchmarks.performance.audit.writes [DATABASE_URL] [--events 1000000] [--batch 64] [--repeats 30]
"""

import argparse
import asyncio
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from datetime import date
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
from sqlalchemy import URL, make_url

from benchmarks.performance.audit.events import MODEL, NotEmpty, database, generate
from projector.forgetting.status import RepairStatus
from service.access.keyring import Keyring
from service.access.own_slots import OwnSlots
from service.db.engine import Engine, create_engine
from service.db.transactions import transaction
from service.domain.figures import BatchDetails, RequestNorms
from service.domain.kinds import RequestKind
from service.domain.records import RequestAudit, Targets
from service.domain.states import Cause, Guarantee
from service.domain.versions import Version, batch_record
from service.log.leaves import AuditFigures
from service.predictions.version_rows import BatchRepository, VersionRepository
from service.requests.intake import Intake, NewRequest
from service.requests.moves import AppliedOutcome, RequestMoves

_COPIES = ("lethe_with_audit", "lethe_without_audit")
_TRIGGERS = {
    "requests": (
        *(f"requests_total_{operation}" for operation in ("insert", "update", "delete")),
        *(f"request_search_{operation}" for operation in ("insert", "update", "delete")),
    ),
    "request_audits": ("request_search_measured", "request_search_corrected"),
    "batches": ("request_search_ended",),
}
#: Indexes that no step of a deletion reads.
_INDEXES = (
    "requests_newest_by_status",
    "requests_applied_at",
    "requests_completed_at",
    "requests_failed_at",
    "requests_reference",
    "batches_committed_at",
)
_NORMS = RequestNorms(1, 0.25, 0.0, None, None)
_WORDS = "The projection changed nothing: every direction of the deleted features is also present in others."
_STEPS = ("accepted", "committed", "applied", "completed")


class Writer:
    """Runs batches of requests through one database."""

    def __init__(self, engine: Engine, own_slots: OwnSlots, keyring: Keyring, api_key_id: UUID, version: int) -> None:
        self._engine = engine
        self._intake = Intake(engine, own_slots, keyring, max_queued_nodes=None)
        self._api_key_id = api_key_id
        self._version = version

    async def batch(self, size: int) -> dict[str, float]:
        """Return the milliseconds of each step of a batch of `size` requests."""
        started = [time.perf_counter()]
        accepted = await asyncio.gather(*(self._intake.accept(self._new(number)) for number in range(size)))
        started.append(time.perf_counter())
        ids = [one.request.id for one in accepted]
        self._version += 1
        version = _made(self._version, size)
        async with transaction(self._engine) as connection:
            await VersionRepository(connection).insert(version)
            await BatchRepository(connection).insert(version, _DETAILS, dict.fromkeys(ids, _NORMS))
        started.append(time.perf_counter())
        content = AuditFigures(RequestKind.NODE, RequestAudit(batch_record(version, _DETAILS, None), _NORMS))
        outcomes = [AppliedOutcome(one, Guarantee.SPAN, RepairStatus.NONE, _WORDS, content) for one in ids]
        async with transaction(self._engine) as connection:
            await RequestMoves(connection).mark_applied(version.id, outcomes)
        started.append(time.perf_counter())
        async with transaction(self._engine) as connection:
            await VersionRepository(connection).finish(version.id, span_residual=1e-15, durations_ms={})
            await RequestMoves(connection).mark_completed(dict.fromkeys(ids, content))
        started.append(time.perf_counter())
        return {step: (end - begin) * 1000 for step, begin, end in zip(_STEPS, started[:-1], started[1:], strict=True)}

    async def close(self) -> None:
        """Close the intake."""
        await self._intake.close()

    def _new(self, number: int) -> NewRequest:
        node = str(number)
        targets = Targets(nodes=(node,), node_salts={node: os.urandom(24).hex()}, reference_salt=os.urandom(24).hex())
        return NewRequest(
            model=MODEL,
            kind=RequestKind.NODE,
            targets=targets,
            reference=f"DSR-{uuid4()}",
            api_key_id=self._api_key_id,
            idempotency_key=None,
            body_digest=None,
        )


_DETAILS = BatchDetails(
    rank_before=9,
    weight_change=0.01,
    coefficient_residual=1e-15,
    lost_direction_norm_before=None,
    lost_direction_norm_after=None,
    factor_method="downdate",
    distance_bound_start_relative=None,
)


def _made(number: int, size: int) -> Version:
    return Version(
        id=uuid4(),
        model=MODEL,
        number=number,
        fencing=1,
        cause=Cause.BATCH,
        folder=f"{number}-1",
        digest="2" * 64,
        weights_sha256="1" * 64,
        number_before=number - 1,
        weights_sha256_before="0" * 64,
        rank=9,
        live_nodes=1000,
        edges=5000,
        device="cpu",
        durations_ms={"project": 1.9},
        requests=size,
        deleted_nodes=size,
        distance_bound_before=1.5,
        distance_bound_after=1e-9,
        distance_bound_before_relative=0.1,
        distance_bound_after_relative=1e-10,
        repair=RepairStatus.CONVERGED,
        repair_version=number,
        repair_iterations=3,
        repair_products=31,
        repair_weight_change=0.01,
        repair_tolerance=1e-8,
    )


@contextlib.asynccontextmanager
async def copies(database_url: str) -> AsyncIterator[dict[str, str]]:
    """Yield the URLs of two copies of a database, the second without the audit, and drop them at the end."""
    url = make_url(database_url)
    administration = await asyncpg.connect(_url(url.set(database="postgres")))
    try:
        for name in _COPIES:
            await administration.execute(f"DROP DATABASE IF EXISTS {name}")
            await administration.execute(f'CREATE DATABASE {name} TEMPLATE "{url.database}" STRATEGY file_copy')
        made = {name: _url(url.set(database=name)) for name in _COPIES}
        connection = await asyncpg.connect(made[_COPIES[1]])
        for table, triggers in _TRIGGERS.items():
            for trigger in triggers:
                await connection.execute(f"DROP TRIGGER {trigger} ON {table}")
        await connection.execute(f"DROP INDEX {', '.join(_INDEXES)}")
        await connection.close()
        yield made
    finally:
        for name in _COPIES:
            await administration.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await administration.close()


def _url(url: URL) -> str:
    return url.render_as_string(hide_password=False)


async def run(database_url: str, home: Path, options: argparse.Namespace) -> None:
    """Fill the database if it is empty, measure on copies of it, and print."""
    with contextlib.suppress(NotEmpty):
        await generate(database_url, events=options.events, days=365)
    connection = await asyncpg.connect(database_url)
    events = await connection.fetchval("SELECT count(*) FROM events")
    version = await connection.fetchval("SELECT version FROM pointers WHERE model = $1", MODEL)
    api_key_id = await connection.fetchval("SELECT id FROM api_keys WHERE name = 'generated'")
    fsync = await connection.fetchval("SHOW fsync")
    await connection.close()
    times: dict[str, list[Mapping[str, float]]] = {name: [] for name in _COPIES}
    async with copies(database_url) as urls, contextlib.AsyncExitStack() as stack:
        writers = {}
        for name, url in urls.items():
            engine = create_engine(url)
            stack.push_async_callback(engine.dispose)
            own_slots = stack.enter_context(OwnSlots.open(home / name / "requests"))
            writers[name] = Writer(engine, own_slots, Keyring.open(home / name), UUID(str(api_key_id)), version)
            stack.push_async_callback(writers[name].close)
        for turn in range(options.repeats + 3):
            for name, writer in writers.items():
                taken = await writer.batch(options.batch)
                if turn >= 3:
                    times[name].append(taken)
    loads = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    print(
        f"{events:,} events, batches of {options.batch} requests, {options.repeats} each, fsync {fsync},"
        f" {os.cpu_count()} CPUs (load {loads}), {date.today()}\n"
    )
    print("| step | with the audit, median ms | without, median ms | ratio |\n| --- | ---: | ---: | ---: |")
    for step in (*_STEPS, "all of it"):
        with_audit, without = (
            statistics.median(sum(taken.values()) if step == "all of it" else taken[step] for taken in times[name])
            for name in _COPIES
        )
        print(f"| {step} | {with_audit:.1f} | {without:.1f} | {with_audit / without:.2f} |")


def main() -> None:
    """Measure on the given server, or on a private one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("database_url", nargs="?", help="postgresql://… as its owner; by default a private server")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, database(options.database_url, Path(folder)) as url:
        asyncio.run(run(url, Path(folder), options))


if __name__ == "__main__":
    main()
