"""What `lethe doctor --role unlearner` finds: the health check of the unlearners that run here."""

from collections.abc import Sequence
from pathlib import Path

from service.cli.running.findings import Finding
from service.operation.unlearner_health import RunningUnlearner, running_unlearners

#: Seconds that an unlearner gets beyond those that it gives to its own checks.
_MARGIN_S = 3.0


async def unlearners(home: Path, checks_s: float) -> Sequence[Finding]:
    """Findings about the unlearners of `home` that run on this machine or in this container, or that none does.

    `checks_s` is LETHE_READINESS_TIMEOUT_S: the seconds that an unlearner gives to its checks.
    """
    timeout_s = checks_s + _MARGIN_S
    running = await running_unlearners(home, timeout_s)
    if running:
        return [finding for one in running for finding in _of(one, timeout_s)]
    remedy = "Start it with `./lethe serve` or `./lethe serve --role unlearner`. Its log says why it stopped."
    return [Finding("unlearner", False, f"No unlearner runs here in {home}.", remedy)]


def _of(one: RunningUnlearner, timeout_s: float) -> Sequence[Finding]:
    if one.health is None:
        found = f"Process {one.pid} does not answer within {timeout_s:g} s."
        return [Finding(one.name, False, found, "Check its log. Restart it if this persists.")]
    phase, reason = one.health.condition.phase, one.health.condition.reason
    found = f"Process {one.pid} is {phase.value}. {reason or ''}".rstrip()
    goes_on = one.health.goes_on
    remedy = "" if goes_on else "It resumes once the cause is gone. If this persists, check its log."
    checks = [Finding(f"{one.name}: {check.name}", check.ok, check.detail, check.remedy) for check in one.health.checks]
    return [Finding(one.name, goes_on, found, remedy), *checks]
