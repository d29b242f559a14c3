"""Readiness messages are for the operator."""

import asyncio
from pathlib import Path

import torch
from redis.asyncio import Redis

from service.access.keyring import Keyring
from service.access.own_slots import OwnSlots
from service.db.engine import create_engine
from service.domain.lease_report import Check, Condition, Phase
from service.predictions.reader import Reader
from service.processes.readiness import Readiness, api_probes, holder_probes, reported_checks
from service.processes.unlearner_probes import keep_looking, unlearner_probes
from service.queue.outage import Outage
from service.queue.stream import DeletionStream
from service.requests.delivery import ClaimWatch
from service.unlearner.workers import MeetingPlace, Team

NOWHERE = "127.0.0.1:1"


async def test_every_failing_check_says_what_to_do(tmp_path: Path) -> None:
    def full() -> Condition:
        return Condition(Phase.FAILED, "The disk is full.")

    engine, redis = create_engine(f"postgresql://nobody@{NOWHERE}/none"), Redis.from_url(f"redis://{NOWHERE}/0")
    own_slots = OwnSlots.open(tmp_path / "keys" / "requests")
    cpu = torch.device("cpu")
    team = Team(MeetingPlace("127.0.0.1", 1, 1.0), 2, cpu)
    stream = DeletionStream(redis, "small")
    queue = ClaimWatch(engine, stream, (Outage("relay"),), 0.0)
    found = [
        *api_probes(
            home=tmp_path,
            model="small",
            engine=engine,
            redis=stream.ping,
            keyring=Keyring.open(tmp_path / "keys"),
            key_files=own_slots.check_file,
            predictions=lambda: Reader(tmp_path).predict_many(()),
            max_wait_s=0.0,
        ),
        *unlearner_probes(queue=queue, key_files=own_slots.check_file, device=cpu, team=team, restarts=2),
    ]
    checks = {check.name: check for check in await Readiness(found, timeout_s=10.0, state=full)()}
    by_row = await Readiness(holder_probes(engine, "small"), timeout_s=10.0, state=full)()
    assert await reported_checks(engine, "small") == ()
    await engine.dispose()
    await redis.aclose()
    own_slots.close()
    working = [name for name, check in checks.items() if check.ok]
    assert working == ["disk", "queue", "unlearner_keys", "device", "restarts", "workers"]
    assert checks["workers"].detail == "1 of 2 compute together"
    for name in ("postgres", "migrations", "keys", "clock", "residuals", "oldest_request"):
        assert "DATABASE_URL" in checks[name].remedy
    assert checks["redis"].remedy.startswith("Start it")
    assert [(check.name, check.ok) for check in by_row] == [("lease", False), ("unlearner", False)]
    assert all("DATABASE_URL" in check.remedy for check in by_row)
    assert all(check.remedy for check in checks.values() if not check.ok)


async def test_an_answer_is_given_again_for_half_a_second_or_until_the_unlearner_goes_on() -> None:
    looks: list[Phase] = []
    now, condition = 0.0, Condition(Phase.LOADING)

    async def look() -> str:
        looks.append(condition.phase)
        return condition.phase.value

    readiness = Readiness([("unlearner", look)], timeout_s=10.0, state=lambda: condition, clock=lambda: now)

    async def detail() -> str:
        (check,) = await readiness()
        return check.detail

    assert [await detail(), await detail()] == ["loading the model"] * 2
    assert looks == [Phase.LOADING]
    condition = Condition(Phase.SERVING)
    assert [await detail(), await detail()] == ["serving"] * 2
    assert looks == [Phase.LOADING, Phase.SERVING]
    now = 0.6
    assert await detail() == "serving"
    assert len(looks) == 3


async def test_what_was_found_is_reported_again_and_again_until_it_is_to_stop() -> None:
    async def works() -> str:
        return "cpu"

    stop, reported = asyncio.Event(), list[tuple[Check, ...]]()

    def report(checks: tuple[Check, ...]) -> None:
        reported.append(checks)
        stop.set()

    readiness = Readiness([("device", works)], timeout_s=10.0, state=lambda: None)
    await keep_looking(readiness, report, stop)
    assert reported == [(Check("device", True, "cpu"),)]
