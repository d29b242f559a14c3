"""Postgres' refusal of a connection reaches the operator, with a matching remedy, and no one else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from service.db import migrate, schema
from service.db.engine import connect, create_engine
from service.db.notifications import listen
from service.db.transactions import transaction
from service.errors import DatabaseRefused, LetheError, Unavailable
from service.web.problems import of_error
from tests.support.clients.command_line import CommandLine
from tests.support.service.certificates import Certificate
from tests.support.service.tls_front import TlsFront

_WAIT = "few seconds"


def with_(url: str, *, more: str = "", **parts: Any) -> str:
    changed = make_url(url).set(**parts).render_as_string(hide_password=False)
    return f"{changed}?{more}" if more else changed


async def refused(url: str) -> Unavailable:
    """Return how a connection to `url` fails; every way to connect must report the same."""
    engine = create_engine(url)
    ways = []
    try:
        with pytest.raises(Unavailable) as in_transaction:
            async with transaction(engine):
                pass
        ways.append(in_transaction.value)
        with pytest.raises(Unavailable) as listening:
            async with listen(engine):
                pass
        ways.append(listening.value)
    finally:
        await engine.dispose()
    with pytest.raises(Unavailable) as looking:
        await schema.current(url)
    with pytest.raises(Unavailable) as migrating:
        await migrate.upgrade(url)
    ways += [looking.value, migrating.value]
    assert len({(type(one), one.detail, one.remedy, one.server_message) for one in ways}) == 1
    return ways[0]


#: Fault in a URL -> the error type, and words from the message, from Postgres and from the remedy.
WRONG: dict[str, tuple[Callable[[str], str], type[LetheError], str, str, str]] = {
    "no such login": (
        lambda url: with_(url, username="nobody", password="mistyped"),
        DatabaseRefused,
        "refuses Lethe's login",
        'authentication failed for user "nobody"',
        "password",
    ),
    "wrong password": (
        lambda url: with_(url, password="mistyped"),
        DatabaseRefused,
        "refuses Lethe's login",
        "password authentication failed",
        "LETHE_API_DATABASE_URL",
    ),
    "no such database": (
        lambda url: with_(url, database="nowhere"),
        DatabaseRefused,
        "has no such database",
        'database "nowhere" does not exist',
        "name of the database",
    ),
    "no TLS": (
        lambda url: with_(url, more="sslmode=require"),
        DatabaseRefused,
        "does not speak TLS",
        "rejected SSL upgrade",
        "sslmode=disable",
    ),
    "an unknown setting": (
        lambda url: with_(url, more="options=-c%20nonsense%3D1"),
        DatabaseRefused,
        "rejects a connection parameter",
        'unrecognized configuration parameter "nonsense"',
        "Remove it",
    ),
    "a wrong value": (
        lambda url: with_(url, more="statement_timeout=soon"),
        DatabaseRefused,
        "rejects a connection parameter",
        'invalid value for parameter "statement_timeout"',
        "Remove it",
    ),
    "nothing there": (
        lambda url: with_(url, host="127.0.0.1", port=1),
        Unavailable,
        "does not answer (Connection refused)",
        "",
        "Start it",
    ),
    "an unknown host": (
        lambda url: with_(url, host="nowhere.invalid"),
        Unavailable,
        "the name of its host is unknown",
        "",
        "DATABASE_URL",
    ),
}


@pytest.mark.parametrize("what", WRONG)
async def test_each_refusal_names_its_cause(empty_database_url: str, what: str) -> None:
    changed, kind, cause, words, remedy = WRONG[what]
    error = await refused(changed(empty_database_url))
    assert type(error) is kind
    assert error.detail.startswith("The database cannot be used: it ")
    assert cause in error.detail
    assert words in error.server_message
    assert remedy in error.remedy
    assert _WAIT not in error.remedy
    for secret in ("mistyped", make_url(empty_database_url).password or "?"):
        assert secret not in f"{error.for_operators} {error.remedy}"
    # Callers must not see logins, databases and addresses.
    answered = bytes(of_error(error).body)
    assert b"nobody" not in answered
    assert b"nowhere" not in answered


@pytest.mark.parametrize(
    "command", ["migrate", "doctor", "keys list", "audit export", "webhooks list", "recover", "serve"]
)
def test_every_command_that_connects_refuses_a_parameter_by_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://lethe:hunter2@127.0.0.1:1/lethe?channel_binding=require")
    monkeypatch.setenv("REDIS_URL", "redis://:hunter2@127.0.0.1:1/queue")
    ran = CommandLine(capsys)(*command.split(), "--home", tmp_path)
    assert (ran.status, ran.stdout) == (2, "")
    assert "DATABASE_URL: channel_binding must be" in ran.stderr
    assert "REDIS_URL: the database after the last / must be" in ran.stderr
    assert "hunter2" not in ran.stderr


async def test_parameters_of_a_url_are_those_of_the_connections(empty_database_url: str) -> None:
    more = "application_name=mine&statement_timeout=7s&search_path=pg_catalog&options=-c%20geqo%3Doff&connect_timeout=5"
    names = ("application_name", "statement_timeout", "search_path", "geqo", "timezone")
    engine = create_engine(with_(empty_database_url, more=more))
    try:
        async with transaction(engine) as connection:
            shown = [await connection.scalar(text(f"SHOW {name}")) for name in names]
        outside = await connect(engine)
        assert [await outside.fetchval(f"SHOW {name}") for name in names] == shown
        await outside.close()
    finally:
        await engine.dispose()
    assert shown == ["mine", "7s", "pg_catalog", "off", "UTC"]
    async with schema.connected(with_(empty_database_url, more=more)) as connection:
        assert [await connection.scalar(text(f"SHOW {name}")) for name in names[:4]] == shown[:4]


async def test_several_hosts_are_tried_until_one_answers(empty_database_url: str) -> None:
    url = make_url(empty_database_url)
    hosts = f"127.0.0.1:1,{url.host}:{url.port}"
    several = f"postgresql://{url.username}:{url.password}@{hosts}/{url.database}?target_session_attrs=read-write"
    engine = create_engine(several)
    try:
        async with transaction(engine) as connection:
            assert await connection.scalar(text("SHOW transaction_read_only")) == "off"
    finally:
        await engine.dispose()
    assert await schema.current(several) is None


async def test_a_server_with_tls_is_verified_as_the_url_asks(empty_database_url: str, tmp_path: Path) -> None:
    made = Certificate.make(tmp_path)
    (tmp_path / "other").mkdir()
    other = Certificate.make(tmp_path / "other").certificate
    behind = make_url(empty_database_url)
    assert behind.host is not None
    assert behind.port is not None
    with TlsFront((behind.host, behind.port), made, postgres=True) as front:
        url, handshakes = with_(empty_database_url, port=front.port), front.names
        for more in (
            "",
            "sslmode=prefer",
            "sslmode=require",
            "sslmode=require&ssl_min_protocol_version=TLSv1.3",
            f"sslmode=verify-ca&sslrootcert={made.certificate}",
            f"sslmode=verify-full&sslrootcert={made.certificate}",
        ):
            before = len(handshakes)
            assert await schema.current(with_(url, more=more)) is None
            assert len(handshakes) == before + 1, more
        named = with_(url, host="localhost", more=f"sslmode=verify-full&sslrootcert={made.certificate}")
        for wrong in (with_(url, more=f"sslmode=verify-full&sslrootcert={other}"), named):
            error = await refused(wrong)
            assert type(error) is DatabaseRefused
            assert "cannot be reached with TLS" in error.detail
            assert "certificate verify failed" in error.server_message
