"""Every parameter of DATABASE_URL and REDIS_URL is understood, or refused by its name; none is a traceback."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from asyncpg import connect_utils
from redis.asyncio.connection import URL_QUERY_ARGUMENT_PARSERS, AbstractConnection, SSLConnection

from service.cli.exit_status import ExitStatus
from tests.support.clients.command_line import Ran
from tests.support.everyday import everyday
from tests.support.inputs.command_lines import Line
from tests.support.inputs.typed import Typed
from tests.support.inputs.variations import UNKNOWN, VALUES, Sweep, fault_of, misspellings

#: What libpq understands in a URL, by its manual, and managed services put there.
LIBPQ = {
    *("host", "hostaddr", "port", "dbname", "user", "password", "passfile", "require_auth", "channel_binding"),
    *("connect_timeout", "client_encoding", "options", "application_name", "fallback_application_name"),
    *("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout", "replication"),
    *("gssencmode", "sslmode", "sslnegotiation", "sslcompression", "sslcert", "sslkey", "sslpassword", "sslcertmode"),
    *("sslrootcert", "sslcrl", "sslcrldir", "sslsni", "requirepeer", "ssl_min_protocol_version"),
    *("ssl_max_protocol_version", "krbsrvname", "gsslib", "gssdelegation", "service", "target_session_attrs"),
    *("load_balance_hosts", "ssl"),
}
#: What the driver reads of a URL.
DRIVER = set(re.findall(r"'(\w+)' in query", inspect.getsource(connect_utils._parse_connect_dsn_and_args)))
REDIS = {*URL_QUERY_ARGUMENT_PARSERS} | {
    name
    for kind in (AbstractConnection, SSLConnection)
    for name in inspect.signature(kind).parameters
    if name not in ("self", "kwargs")
}
#: Values of any of them, one right for each.
PLAUSIBLE = (
    "1",
    "10",
    "require",
    "disable",
    "verify-full",
    "prefer",
    "lethe",
    "utf8",
    "-c jit=off",
    "true",
)
#: What follows the scheme, where no server can be meant or none answers.
FORMS = (
    "", ":", "://", ":///", "://127.0.0.1:x/0", "://127.0.0.1:99999/0", "://127.0.0.1:-1/0", "://127.0.0.1:1/queue",
    "://127.0.0.1:1/0/1", "://127.0.0.1:1/%zz", "://[::1/0", "://[x]:1/0", "://a:b:c@127.0.0.1:1/0", "://@:1/0",
    "://127.0.0.1:1,127.0.0.2:1/0", "://127.0.0.1:1/0?", "://127.0.0.1:1/0?=", "://127.0.0.1:1/0?&&", "://127.0.0.1:1/0#x",
    "://127.0.0.1:1/0?a", "s://127.0.0.1:1/0", "://\u202e:1/0", f"://{'x' * 300}:1/0", "://127.0.0.1:1/-1", " ://127.0.0.1:1/0",
)  # fmt: skip


@pytest.mark.parametrize("most", everyday((1, 8), 1))
def test_a_parameter_of_a_url_is_understood_or_refused_by_name(
    typed: Typed, database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, most: int
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("REDIS_URL", redis_url)
    sweep = Sweep("connection strings")
    urls = {"DATABASE_URL": (database_url, LIBPQ | DRIVER), "REDIS_URL": (redis_url, REDIS)}
    cases = [(variable, *case) for variable in urls for case in faulty(*urls[variable], sweep, most)]
    for variable, url, wrong, may_be_taken in sweep.cases(cases, None if most > 1 else 25):
        with monkeypatch.context() as patched:
            patched.setenv(variable, url)
            ran = typed(Line(("migrate",) if variable == "DATABASE_URL" else ("doctor",)))
        if what := judged(ran, wrong, may_be_taken=may_be_taken):
            sweep.find(f"{variable}='{url}'", what)
    sweep.judge()


@pytest.mark.parametrize("variable", ["DATABASE_URL", "REDIS_URL"])
def test_a_url_of_another_form_is_refused_in_words(
    typed: Typed, variable: str, database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("REDIS_URL", redis_url)
    sweep = Sweep(variable)
    scheme = "postgresql" if variable == "DATABASE_URL" else "redis"
    for rest in sweep.cases(FORMS):
        url = f"{scheme}{rest}"
        monkeypatch.setenv(variable, url)
        ran = typed(Line(("migrate",) if variable == "DATABASE_URL" else ("doctor",)))
        if isinstance(ran, str):
            sweep.find(f"{variable}='{url}'", f"a traceback ({ran[:150]})")
        elif ran.status == ExitStatus.DONE:
            sweep.find(f"{variable}='{url}'", "taken")
    sweep.judge()


def faulty(url: str, known: set[str], sweep: Sweep, most: int) -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """URLs with a parameter, what a refusal must name one of, and whether it may be understood."""
    joined = "&" if "?" in url else "?"
    yield f"{url}{joined}{UNKNOWN}=1", (UNKNOWN,), False
    for name in sorted(known):
        for value in sweep.some([*PLAUSIBLE, *VALUES], most):
            # What only the server understands, it refuses by its value.
            yield f"{url}{joined}{name}={quote(value)}", (name, value.strip() or name), True
        yield f"{url}{joined}{name}=1&{name}=2", (name,), False
        for misspelled in sweep.some(misspellings(name, known), most):
            yield f"{url}{joined}{quote(misspelled)}=1", (misspelled,), False


def judged(ran: Ran | str, wrong: tuple[str, ...], *, may_be_taken: bool) -> str | None:
    """What is wrong with how a command ended; None when nothing is."""
    if isinstance(ran, str):
        return f"a traceback ({ran[:150]})"
    refused = ran.status == ExitStatus.USAGE
    if refused or not may_be_taken:
        return fault_of(refused, ran.stderr, *wrong)
    # Understood; what the server or the network says of it is another matter.
    return (
        None if ran.status in (ExitStatus.DONE, ExitStatus.FAILED, ExitStatus.UNREACHABLE) else f"status {ran.status}"
    )
