"""`lethe doctor`: check everything that Lethe needs, on this machine and on its servers."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.text import Text

from service.cli import findings
from service.cli.console import ExitStatus, Json, print_result, stderr, table
from service.cli.findings import Finding, attempt
from service.cli.server import Home, read_facts, settings_of
from service.processes.listening import ServerFacts
from service.processes.unlearner_health import RunningUnlearner, running_unlearners
from service.settings import Settings

#: Extra seconds for an unlearner beyond the timeout of its own checks.
_MARGIN_S = 3.0


async def unlearners(home: Path, checks_s: float) -> Sequence[Finding]:
    """Return findings about the unlearners of `home` on this machine or in this container, or their absence.

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


Role = Annotated[
    Literal["unlearner"] | None,
    typer.Option("--role", help="Check only this part: whether it runs here and is healthy."),
]

_MARKS = {True: Text("ok", "green"), False: Text("wrong", "bold red"), None: Text("-", "dim")}


def command(home: Home = Path("var"), role: Role = None, as_json: Json = False) -> None:
    """Check the health of Lethe, with a remedy for each problem.

    Starts and changes nothing. Exits with 1 if something is wrong.

    `--role unlearner` is the health check of the unlearner. An unlearner that loads the model or stands by is healthy.

    Examples:

    [bold]./lethe doctor[/bold]

    [bold]./lethe doctor --role unlearner[/bold]
    """
    settings = settings_of(home)
    timeout_s = settings.readiness_timeout_s
    found = asyncio.run(unlearners(settings.home, timeout_s)) if role else _everything(settings)
    rows = [(one.name, _MARKS[one.ok], one.found) for one in found]
    wrong = [one for one in found if one.ok is False]
    print_result({"ok": not wrong, "findings": found}, as_json, table("Lethe's health", ("", "", "found"), rows))
    for one in wrong:
        stderr().print(Text.assemble((f"{one.name}: ", "bold"), one.remedy))
    if wrong:
        raise typer.Exit(ExitStatus.FAILED)


def _everything(settings: Settings) -> Sequence[Finding]:
    return [
        findings.python_version(),
        attempt("packages", lambda: findings.packages(Path(__file__).parents[2])),
        attempt("device", lambda: findings.device(settings.device)),
        attempt("disk space", lambda: findings.disk(settings.home)),
        attempt("keys", lambda: findings.keys(settings.home / "keys")),
        attempt("model", lambda: findings.model(settings.model_dir)),
        attempt("ledger", lambda: findings.ledger(settings.ledger, settings.home, settings.model_dir)),
        *asyncio.run(_servers(settings, read_facts(settings.home))),
    ]


async def _servers(settings: Settings, facts: ServerFacts | None) -> Sequence[Finding]:
    from service.cli import server_findings
    from service.db.roles import API_ROLE, UNLEARNER_ROLE
    from service.processes.private_servers import running_servers, with_private

    private = running_servers(settings.home) if facts is not None else None
    if private is not None:
        settings = with_private(settings, private)
    logins = {API_ROLE: settings.api_database_url, UNLEARNER_ROLE: settings.unlearner_database_url}
    return [
        *await server_findings.postgres(settings),
        *[await server_findings.login(url, role) for role, url in logins.items() if settings.database_url is not None],
        await server_findings.redis(settings.redis_url),
        *server_findings.service(facts),
    ]
