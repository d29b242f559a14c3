"""An api process learns from the lease's row whether an unlearner works: a restart is waited out, a failure is not."""

import pytest

from service.db import lease as leases
from service.domain.lease_report import Check, Condition, LeaseReport, Phase
from service.processes.readiness import MOST_AWAY_S, Readiness, holder_probes, reported_checks
from tests.support.service.db_harness import MODEL, Database


async def found(db: Database) -> dict[str, Check]:
    async def others() -> tuple[Check, ...]:
        return await reported_checks(db.engine, MODEL)

    readiness = Readiness(holder_probes(db.engine, MODEL), timeout_s=10.0, state=lambda: None, others=others)
    return {check.name: check for check in await readiness()}


async def say(db: Database, phase: Phase, reason: str | None = None, checks: tuple[Check, ...] = ()) -> None:
    lease = await leases.acquire(db.engine, MODEL, "one", 60)
    assert lease is not None
    await leases.renew(db.engine, lease, LeaseReport(Condition(phase, reason), device="cpu", checks=checks))


async def served_ago(db: Database, seconds: float) -> None:
    await db.rows(f"UPDATE leases SET served_at = clock_timestamp() - interval '{seconds} s'")


async def test_before_anybody_has_served_it_is_not_ready(db: Database) -> None:
    checks = await found(db)
    assert [name for name, check in checks.items() if check.ok] == []
    await say(db, Phase.LOADING)
    checks = await found(db)
    assert (checks["lease"].ok, checks["unlearner"].ok) == (True, False)
    assert checks["unlearner"].detail == "The unlearner is loading the model."
    await say(db, Phase.SERVING, "An import waits for room.")
    assert {check.detail for check in (await found(db)).values()} == {"held", "serving. An import waits for room."}


async def test_a_restart_is_waited_out_for_a_stated_time(db: Database) -> None:
    await say(db, Phase.SERVING)
    # It was killed, so its last message stays.
    await db.rows("UPDATE leases SET expires_at = clock_timestamp() - interval '1 s'")
    for ago, ready in ((5.0, True), (MOST_AWAY_S - 20.0, True), (MOST_AWAY_S + 5.0, False)):
        await served_ago(db, ago)
        checks = await found(db)
        assert {check.ok for check in checks.values()} == {ready}
        assert "One last served" in checks["unlearner"].detail
    await say(db, Phase.LOADING)
    await served_ago(db, 5.0)
    assert (await found(db))["unlearner"].ok
    await served_ago(db, MOST_AWAY_S + 5.0)
    checks = await found(db)
    assert (checks["lease"].ok, checks["unlearner"].ok) == (True, False)


async def lives(db: Database, holder: str, *, killed: bool = True, after_failure: bool = False) -> None:
    """Another unlearner serves briefly; then it is killed, or stopped cleanly."""
    lease = await leases.acquire(db.engine, MODEL, holder, 60, after_failure=after_failure)
    assert lease is not None
    lease = await leases.renew(db.engine, lease, LeaseReport(Condition(Phase.SERVING)))
    if killed:
        await db.rows("UPDATE leases SET expires_at = clock_timestamp() - interval '1 s'")
    else:
        await leases.release(db.engine, lease)


async def passed(db: Database, seconds: float) -> None:
    """Shift everything by this many seconds."""
    times = ("served_at", "serving_since", "failing_since")
    earlier = ", ".join(f"{at} = {at} - make_interval(secs => :seconds)" for at in times)
    await db.rows(f"UPDATE leases SET {earlier}", seconds=seconds)


@pytest.mark.parametrize("killed", [True, False])
async def test_an_unlearner_that_serves_for_a_moment_again_and_again_is_not_ready(db: Database, killed: bool) -> None:
    await lives(db, "first", killed=killed)
    for turn in range(4):
        await passed(db, 20.0)
        # If another activity fails, an unlearner returns its lease cleanly; the supervisor handles the failure.
        await lives(db, f"again {turn}", killed=killed, after_failure=not killed)
    lease = await leases.acquire(db.engine, MODEL, "last", 60, after_failure=not killed)
    assert lease is not None
    for phase in (Phase.LOADING, Phase.SERVING):
        lease = await leases.renew(db.engine, lease, LeaseReport(Condition(phase)))
        check = (await found(db))["unlearner"]
        assert not check.ok
        assert "has failed 5 times in 8" in check.detail
        assert check.remedy


@pytest.mark.parametrize("is_outage", [True, False])
async def test_outages_that_an_unlearner_waits_out_are_no_failures_of_it(db: Database, is_outage: bool) -> None:
    for phase in (Phase.SERVING, *[Phase.FAILED] * 4, Phase.SERVING):
        lease = await leases.acquire(db.engine, MODEL, "one", 60, after_failure=not is_outage)
        assert lease is not None
        await leases.renew(db.engine, lease, LeaseReport(Condition(phase)))
        await passed(db, 20.0)
    assert (await found(db))["unlearner"].ok is is_outage


async def test_lasting_service_ends_a_row_of_failures(db: Database) -> None:
    for holder in ("first", "second", "third"):
        await lives(db, holder)
    lease = await leases.acquire(db.engine, MODEL, "fourth", 60)
    assert lease is not None
    serving = LeaseReport(Condition(Phase.SERVING))
    lease = await leases.renew(db.engine, lease, serving)
    await passed(db, MOST_AWAY_S + 1.0)
    assert not (await found(db))["unlearner"].ok
    await leases.renew(db.engine, lease, serving)
    assert (await found(db))["unlearner"].ok


@pytest.mark.parametrize("phase", [Phase.FAILED, Phase.HELD_UP])
async def test_what_the_unlearner_says_is_wrong_is_reported_at_once(db: Database, phase: Phase) -> None:
    await say(db, Phase.SERVING)
    await say(db, phase, "The disk is full.")
    check = (await found(db))["unlearner"]
    assert (check.ok, check.detail) == (False, f"The unlearner is {phase.value}. The disk is full.")
    assert check.remedy
