"""Two intakes and an unlearner in their own processes, killed and stopped: no key is lost, and none is left over."""

import json
import os
import random
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from service.access.key_disposal import UnneededKeys
from service.access.request_keys import RequestKeys, decrypt
from service.failure_points import FailurePoint
from tests.support.everyday import everyday
from tests.support.kills import keys_process
from tests.support.kills.deletions import keys_left
from tests.support.kills.faults import ANSWERING_POINTS, KEY_POINTS, SEED
from tests.support.kills.keys_process import targets_of
from tests.support.preloaded import Preloaded, Process
from tests.support.service.db_harness import MODEL, Database, open_database, until

pytestmark = pytest.mark.ci

_ASKED = 9

Doom = tuple[FailurePoint, int, signal.Signals]


@dataclass
class Processes:
    """Their rounds over one database and one folder of keys."""

    db: Database
    preloaded: Preloaded
    keys: Path
    rng: random.Random
    #: Sent idempotency keys; their results, once reported; those to cancel, and those reported cancelled.
    sent: set[str] = field(default_factory=set)
    reported: dict[str, str] = field(default_factory=dict)
    doomed: set[str] = field(default_factory=set)
    cancelled: set[str] = field(default_factory=set)

    async def round(self, doom: Doom | None) -> None:
        """Both intakes accept, repeat what the other has accepted, and cancel, beside an unlearner.

        One of them meets `doom`. A stopped process is continued when the others are done; the unlearner is killed.
        """
        of_intake = doom if doom and doom[0] in ANSWERING_POINTS else None
        unlearner = self._start("unlearner", doom if of_intake is None else None)
        intakes = [self._start("intake", of_intake, self._orders()), self._start("intake", None, self._orders())]
        assert not await self._answers(intakes[1])
        if of_intake and of_intake[2] is signal.SIGSTOP:
            await until(lambda: _is(intakes[0], psutil.STATUS_STOPPED))
            os.kill(intakes[0].pid, signal.SIGCONT)
        status = await self._answers(intakes[0])
        assert status == (-signal.SIGKILL if of_intake and of_intake[2] is signal.SIGKILL else 0)
        if doom is not None and of_intake is None and doom[2] is signal.SIGKILL:
            assert unlearner.wait() == -signal.SIGKILL
        else:
            os.kill(unlearner.pid, signal.SIGKILL)
            unlearner.wait()
        for process in (unlearner, *intakes):
            process.stdout.close()

    async def settled(self) -> None:
        """Check that there is a key for each request that needs one and no other, and that any process reads it."""
        unneeded = UnneededKeys(self.db.engine, RequestKeys(self.keys / "requests"))
        await unneeded.destroy_dropped()
        await unneeded.destroy_orphaned()
        rows = await self.db.rows("SELECT id, idempotency_key, ciphertext, key_file, key_place FROM requests")
        by_key = {row["idempotency_key"]: row for row in rows}
        assert len(by_key) == len(rows)
        assert self.reported.keys() <= by_key.keys() <= self.sent
        assert all(str(by_key[key]["id"]) == request for key, request in self.reported.items())
        needed = {row["id"]: (row["key_file"], row["key_place"]) for row in rows if row["ciphertext"] is not None}
        assert self.db.kept() == needed
        assert keys_left(self.keys.parent) == len(needed)
        assert {row["key_place"] for row in rows if row["ciphertext"] is None} <= {None}
        assert all(by_key[key]["ciphertext"] is None for key in self.cancelled)
        for key, row in by_key.items():
            if row["id"] in needed:
                of_request = self.db.keys.get(row["id"], self.db.kept()[row["id"]])
                assert of_request is not None
                assert decrypt(row["ciphertext"], of_request, row["id"]) == targets_of(key)

    def _orders(self) -> list[tuple[str, str, str | None]]:
        """Return new requests, repetitions of accepted ones, and cancellations."""
        orders: list[tuple[str, str, str | None]] = []
        for _ in range(_ASKED):
            key = f"{len(self.sent)}"
            self.sent.add(key)
            orders.append(("accept", key, None))
        before = sorted(self.reported)
        orders += [("accept", key, None) for key in self.rng.sample(before, min(4, len(before)))]
        # Separate ones for each: it is not under test which of two intakes cancels.
        free = [key for key in before if key not in self.doomed]
        doomed = self.rng.sample(free, min(4, len(free)))
        self.doomed |= set(doomed)
        return orders + [("cancel", key, self.reported[key]) for key in doomed]

    def _start(self, part: str, doom: Doom | None, orders: object = ()) -> Process:
        order = {
            "part": part,
            "database_url": self.db.url,
            "keys": str(self.keys),
            "model": MODEL,
            "api_key_id": str(self.db.api_key_id),
            "orders": orders,
            "doom": None if doom is None else [doom[0], doom[1], int(doom[2])],
        }
        start = self.preloaded.python(keys_process.__file__)
        process = start([json.dumps(order)], dict(os.environ), self.keys.parent, self.keys.parent / "log")
        if part == "unlearner" and not (doom and doom[0] is FailurePoint.KEYS_EMPTIED):
            assert process.stdout.readline() == "ready\n", (self.keys.parent / "log").read_text()
        return process

    async def _answers(self, process: Process) -> int:
        """Record a process' answers until its end or stop. Returns its exit status."""
        for line in iter(process.stdout.readline, ""):
            answer: dict[str, Any] = json.loads(line)
            key = answer["key"]
            if answer["did"] == "accept":
                assert self.reported.setdefault(key, answer["id"]) == answer["id"]
                # None: cancelled meanwhile.
                assert answer["nodes"] == list(targets_of(key).nodes) or (
                    answer["nodes"] is None and key in self.doomed
                )
            else:
                self.cancelled.add(key)
        return process.wait()


async def _is(process: Process, status: str) -> bool:
    return psutil.Process(process.pid).status() == status


@pytest.fixture
async def processes(database_url: str, tmp_path: Path, preloaded: Preloaded) -> AsyncIterator[Processes]:
    async with open_database(database_url, tmp_path) as db:
        yield Processes(db, preloaded, tmp_path / "keys", random.Random(SEED))


@pytest.mark.parametrize("point", everyday(KEY_POINTS, FailurePoint.KEYS_RESERVED, FailurePoint.KEYS_EMPTIED))
async def test_a_key_is_neither_lost_nor_left_when_a_process_is_killed(
    processes: Processes, point: FailurePoint
) -> None:
    await processes.round(None)
    await processes.round((point, 1, signal.SIGKILL))
    # The killed process' place is taken, and its slots are reused.
    await processes.round(None)
    await processes.settled()


async def test_a_process_that_is_stopped_amid_a_transaction_holds_up_no_other_and_loses_no_key(
    processes: Processes,
) -> None:
    """Prompted by the other to look for orphans, the unlearner finds keys without a row that are not orphaned."""
    await processes.round((FailurePoint.KEYS_RESERVED, 1, signal.SIGSTOP))
    await processes.settled()


# Sixty rounds of 4 s each, more beside other work.
@pytest.mark.timeout(900)
@pytest.mark.slow
async def test_kills_and_stops_drawn_by_a_seed(processes: Processes) -> None:
    rng = processes.rng
    # Provides something to cancel.
    await processes.round(None)
    for _ in range(60):
        point = rng.choice(KEY_POINTS)
        if point is FailurePoint.KEYS_EMPTIED:
            # Notifications decide how often it gets there.
            await processes.round((point, 1, signal.SIGKILL))
        else:
            await processes.round((point, rng.randint(1, 3), rng.choice([signal.SIGKILL, signal.SIGSTOP])))
        await processes.settled()
