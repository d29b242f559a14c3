"""What `lethe doctor --role unlearner` finds: the health check of the unlearners that run here."""

from collections.abc import Sequence
from pathlib import Path

from service.cli.running.findings import Finding
from service.operation.unlearner_health import RunningUnlearner, running_unlearners

#: Longest wait for an unlearner (seconds); it gives each of its own checks LETHE_READINESS_TIMEOUT_S, by default 2.
_TIMEOUT_S = 5.0


async def unlearners(home: Path) -> Sequence[Finding]:
    """How the unlearners of `home` that run on this machine, or in this container, are; a finding that none does."""
    running = await running_unlearners(home, _TIMEOUT_S)
    if running:
        return [finding for one in running for finding in _of(one)]
    remedy = "Start it with `./lethe serve` or `./lethe serve --role unlearner`. Its log says why it stopped."
    return [Finding("unlearner", False, f"No unlearner runs here in {home}.", remedy)]


def _of(one: RunningUnlearner) -> Sequence[Finding]:
    if one.health is None:
        found = f"Process {one.pid} does not answer within {_TIMEOUT_S:g} s."
        return [Finding(one.name, False, found, "Check its log. Restart it if this persists.")]
    phase, reason = one.health.condition.phase, one.health.condition.reason
    found = f"Process {one.pid} is {phase.value}. {reason or ''}".rstrip()
    goes_on = one.health.goes_on
    remedy = "" if goes_on else "It resumes once the cause is gone. If this persists, check its log."
    checks = [Finding(f"{one.name}: {check.name}", check.ok, check.detail, check.remedy) for check in one.health.checks]
    return [Finding(one.name, goes_on, found, remedy), *checks]
