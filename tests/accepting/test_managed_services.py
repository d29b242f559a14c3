"""Connection strings of managed services, in the form that their documentation prints, against real servers.

Names, logins and databases are placeholders there; here they are the tests' own. Hosts resolve to 127.0.0.1. The tests'
builds of Postgres and Valkey have no TLS, so a front ends it, with a certificate for the hosts. Debian's packages
`postgresql` and `redis-server` end it themselves (slow).
"""

import asyncio
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy.engine import URL, make_url

from service.queue.connection import version_of
from tests.support.clients.command_line import CommandLine
from tests.support.everyday import every_case
from tests.support.processes.valkey_process import ValkeyProcess
from tests.support.service.certificates import Certificate
from tests.support.service.tls_front import TlsFront
from tests.support.service.tls_servers import MUTUAL, tls_postgres, tls_redis

pytestmark = pytest.mark.ci

_PASSWORD = "hunter2+a/b="
#: Per service: the address of its documentation, and the strings.
POSTGRES = {
    "Amazon RDS https://docs.aws.amazon.com/AmazonRDS/latest/UserGuide/PostgreSQL.Concepts.General.SSL.html": [
        "postgresql://LOGIN@db1.abcdefghijkl.us-east-1.rds.amazonaws.com:5432/DB?sslmode=verify-full&sslrootcert=CA"
    ],
    "Cloud SQL https://cloud.google.com/sql/docs/postgres/connect-admin-ip": [
        "postgresql://LOGIN@1a23b4cd5e67.1a2b345c6d27.us-central1.sql.goog:5432/DB"
        "?sslmode=verify-full&sslrootcert=CA&sslcert=CERT&sslkey=KEY",
        "postgresql://LOGIN@1a23b4cd5e67.1a2b345c6d27.us-central1.sql.goog/DB"
        "?sslmode=verify-ca&sslrootcert=CA&sslcert=CERT&sslkey=KEY",
    ],
    "Azure https://learn.microsoft.com/azure/postgresql/flexible-server/quickstart-create-server": [
        "postgresql://LOGIN@mydemoserver.postgres.database.azure.com:5432/DB?sslmode=require"
    ],
    "Neon https://neon.com/docs/connect/connect-from-any-app and …/connection-errors": [
        "postgresql://LOGIN@ep-cool-darkness-a1b2c3d4.us-east-2.aws.neon.tech/DB?sslmode=require",
        "postgresql://LOGIN@ep-cool-darkness-a1b2c3d4.us-east-2.aws.neon.tech/DB?sslmode=verify-full&sslrootcert=system",
        "postgresql://LOGIN@ep-cool-darkness-123456.us-east-2.aws.neon.tech/DB"
        "?sslmode=require&options=endpoint%3Dep-cool-darkness-123456",
    ],
    "Supabase https://supabase.com/docs/guides/database/connecting-to-postgres": [
        "postgresql://LOGIN@db.apbkobhfnmcqqzqeeqss.supabase.co:5432/DB",
        "postgres://LOGIN@aws-0-eu-central-1.pooler.supabase.com:5432/DB",
    ],
    "Heroku https://devcenter.heroku.com/articles/connecting-heroku-postgres": [
        "postgres://LOGIN@ec2-117-21-174-214.compute-1.amazonaws.com:6212/DB",
        "postgres://LOGIN@ec2-117-21-174-214.compute-1.amazonaws.com:6212/DB?sslmode=require",
    ],
    "Aiven https://aiven.io/docs/products/postgresql/howto/connect-psql": [
        "postgres://LOGIN@pg-1a2b3c4d-project.a.aivencloud.com:21699/DB?sslmode=require"
    ],
    "DigitalOcean https://docs.digitalocean.com/products/databases/postgresql/how-to/connect/": [
        "postgresql://LOGIN@db-postgresql-nyc3-1-do-user-1-0.b.db.ondigitalocean.com:25060/DB?sslmode=require"
    ],
}
REDIS = {
    "ElastiCache https://docs.aws.amazon.com/AmazonElastiCache/latest/dg/in-transit-encryption.html": [
        "rediss://lethe:PASSWORD@master.my-cache.abc123.use1.cache.amazonaws.com:6379/0"
    ],
    "Upstash https://upstash.com/docs/redis/howto/connectclient": [
        "rediss://default:PASSWORD@us1-merry-cat-32748.upstash.io:6379"
    ],
    "Redis Cloud https://redis.io/docs/latest/operate/rc/databases/connect/": [
        "rediss://default:PASSWORD@redis-12345.c1.us-east-1-2.ec2.cloud.redislabs.com:12345?ssl_ca_certs=CA"
    ],
    "Azure https://learn.microsoft.com/azure/azure-cache-for-redis/cache-python-get-started": [
        "rediss://:PASSWORD@contoso.redis.cache.windows.net:6380/0"
    ],
    "Heroku https://devcenter.heroku.com/articles/connecting-heroku-redis": [
        "rediss://:PASSWORD@ec2-54-84-10-20.compute-1.amazonaws.com:30669?ssl_cert_reqs=none"
    ],
    "Aiven https://aiven.io/docs/products/valkey/howto/connect-python": [
        "rediss://default:PASSWORD@valkey-1a2b3c4d-project.a.aivencloud.com:21700"
    ],
}
#: Strings of other drivers, of poolers, and with what Lethe cannot do -> what the message names.
REFUSED = {
    "host=db1.us-east-1.rds.amazonaws.com port=5432 user=postgres password=hunter2": "must start with postgresql://",
    "postgresql://u:hunter2@/d?hostaddr=203.0.113.5&sslmode=verify-ca&sslrootcert=CA": "hostaddr cannot be used",
    "Server=mydemoserver.postgres.database.azure.com;User Id=u;Password=hunter2;": "must start with postgresql://",
    "jdbc:postgresql://mydemoserver.postgres.database.azure.com/d?password=hunter2": "must start with postgresql://",
    "postgresql+psycopg2://u:hunter2@pg.aivencloud.com:21699/d?sslmode=require": "must start with postgresql://",
    "postgresql://u:hunter2@ep-cool-darkness-a1b2c3d4-pooler.us-east-2.aws.neon.tech/d?sslmode=require"
    "&channel_binding=require": "channel_binding must be",
    "postgres://u.ref:hunter2@aws-0-eu-central-1.pooler.supabase.com:6543/d?pgbouncer=true": "pgbouncer must be",
    "postgres://u:hunter2@ec2-1.compute-1.amazonaws.com:6212/d?sslmode=no-verify": "sslmode must be",
    "contoso.redis.cache.windows.net:6380,password=hunter2,ssl=True,abortConnect=False": "must start with redis://",
    "valkeys://default:hunter2@valkey-1a2b3c4d-project.a.aivencloud.com:21700": "must start with redis://",
    "rediss://default:hun/ter2@us1-merry-cat-32748.upstash.io:6379": "%2F",
    "rediss://default:hunter2@us1-merry-cat-32748.upstash.io:6379?ssl=true": "'ssl' is not a parameter",
    "redis-cli --tls -u redis://default:hunter2@us1-merry-cat-32748.upstash.io:6379": "must start with redis://",
}
_OF_POSTGRES = [one for strings in POSTGRES.values() for one in strings]
_OF_REDIS = [one for strings in REDIS.values() for one in strings]


def place(url: str) -> tuple[str, int]:
    """Return host and port of a string."""
    found = make_url(url.replace("LOGIN", "u").replace("PASSWORD", "p"))
    assert found.host is not None
    return found.host, found.port or 5432


@pytest.fixture
def lethe(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


@dataclass(frozen=True)
class Certificates:
    """An authority that stands for a public one, and what it signed: for all hosts, and for a client."""

    authority: Certificate
    server: Certificate
    client: Certificate


@dataclass(frozen=True)
class Managed:
    """Servers that stand for the services."""

    #: String -> the port that stands for its host and port.
    ports: Mapping[str, int]
    #: The login and database for a string of Postgres.
    login: Callable[[str], URL]
    #: Asserts that a string has just reached its server, by TLS.
    reached: Callable[[str], None]


@pytest.fixture
def certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Certificates:
    folders = [tmp_path / name for name in ("authority", "server", "client")]
    for folder in folders:
        folder.mkdir()
    authority = Certificate.make(folders[0])
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    hosts = sorted({place(one)[0] for one in (*_OF_POSTGRES, *_OF_REDIS)})
    return Certificates(authority, *(Certificate.make(one, by=authority, names=hosts) for one in folders[1:]))


@pytest.fixture
def behind_fronts(certificates: Certificates, empty_database_url: str, tmp_path: Path) -> Iterator[Managed]:
    """The tests' Postgres and Valkey behind fronts, which know the name that a client asked for."""
    own = make_url(empty_database_url)
    assert own.host is not None
    assert own.port is not None
    behind, server, valkey = (own.host, own.port), certificates.server, ValkeyProcess(tmp_path)
    with (
        TlsFront(behind, server, postgres=True) as plain,
        TlsFront(behind, server, postgres=True, clients=certificates.authority) as mutual,
        TlsFront(behind, server, postgres=True, endpoint=b"endpoint=ep-cool-darkness-123456") as neon,
        TlsFront(str(tmp_path / "valkey.sock"), server) as of_redis,
    ):
        fronts = dict.fromkeys(_OF_REDIS, of_redis) | {
            one: mutual if "CERT" in one else neon if "endpoint" in one else plain for one in _OF_POSTGRES
        }

        def reached(url: str) -> None:
            names, fronts[url].names = fronts[url].names, []
            assert set(names) == {place(url)[0]}

        valkey.start()
        try:
            protect(redis.Redis.from_url(valkey.url))
            yield Managed({url: front.port for url, front in fronts.items()}, lambda _: own, reached)
        finally:
            valkey.kill()


@pytest.fixture
def of_debian(certificates: Certificates) -> Iterator[Managed]:
    """Debian's Postgres and Redis, which accept TLS alone. Only a proxy like Neon's takes an endpoint."""
    own = make_url(f"postgresql://{MUTUAL}:{escaped(_PASSWORD)}@/{MUTUAL}")
    with (
        tls_postgres(certificates.server, certificates.authority, "lethe", _PASSWORD) as postgres,
        tls_redis(certificates.server, certificates.authority) as (of_redis, client),
    ):
        protect(client)
        read = len(postgres.log.read_text())

        def reached(url: str) -> None:
            nonlocal read
            log = postgres.log.read_text()
            logins, read = [one for one in log[read:].splitlines() if "connection authorized" in one], len(log)
            assert all("SSL enabled (protocol=TLSv1.3" in one for one in logins)
            assert bool(logins) is (url in _OF_POSTGRES)

        yield Managed(
            dict.fromkeys(_OF_REDIS, of_redis.port)
            | {url: postgres.port for url in _OF_POSTGRES if "endpoint" not in url},
            lambda url: own if "CERT" in url else own.set(username="lethe", database="lethe"),
            reached,
        )


def protect(client: redis.Redis) -> None:
    """Set the password, and add a user with the rights that Lethe's message lists."""
    with client:
        rights = "+@stream +@transaction +@connection +@scripting +@list +@bitmap +get +set +expire +persist ~lethe:*"
        client.execute_command(  # type: ignore[no-untyped-call]
            "ACL", "SETUSER", "lethe", "on", f">{_PASSWORD}", "+info", *rights.split()
        )
        client.config_set("requirepass", _PASSWORD)


def escaped(text: str) -> str:
    return text.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D")


@pytest.mark.parametrize(
    "servers",
    [
        "behind_fronts",
        pytest.param(
            "of_debian", marks=[pytest.mark.slow, pytest.mark.needs("initdb"), pytest.mark.needs("redis-server")]
        ),
    ],
)
def test_strings_of_managed_services_reach_the_server_with_the_tls_that_they_ask_for(
    lethe: CommandLine,
    certificates: Certificates,
    servers: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    managed: Managed = request.getfixturevalue(servers)
    client = certificates.client
    files = {"=CA": certificates.authority.certificate, "=CERT": client.certificate, "=KEY": client.key}
    resolve(monkeypatch, {place(url): port for url, port in managed.ports.items()})

    def filled(url: str) -> str:
        own = managed.login(url)
        for name, path in files.items():
            url = url.replace(name, f"={path}")
        url = url.replace("LOGIN", f"{own.username}:{escaped(str(own.password))}")
        return url.replace("PASSWORD", escaped(_PASSWORD)).replace("/DB", f"/{own.database}")

    assert {*_OF_POSTGRES, *_OF_REDIS} - set(managed.ports) <= {one for one in _OF_POSTGRES if "endpoint" in one}
    for url in managed.ports:
        if url in _OF_POSTGRES:
            monkeypatch.setenv("DATABASE_URL", filled(url))
            migrated = lethe("migrate", "--home", tmp_path)
            assert migrated.status == 0, (url, migrated.stderr)
        else:
            monkeypatch.setenv("REDIS_URL", filled(url))
            assert asyncio.run(version_of(filled(url), socket_timeout_s=10))
        managed.reached(url)
    findings = found(lethe("doctor", "--home", tmp_path, "--json").stdout)
    assert (findings["postgres"], findings["redis"]) == (True, True)

    # The certificate is for another name.
    for verified in (_OF_POSTGRES[0], _OF_REDIS[1]):
        resolve(monkeypatch, {("localhost.example", place(verified)[1]): managed.ports[verified]})
        variable = "REDIS_URL" if verified in _OF_REDIS else "DATABASE_URL"
        monkeypatch.setenv(variable, filled(verified).replace(place(verified)[0], "localhost.example"))
    checked = lethe("doctor", "--home", tmp_path, "--json")
    findings = found(checked.stdout)
    assert (findings["postgres"], findings["redis"]) == (False, False)
    refused = lethe("migrate", "--home", tmp_path)
    assert refused.status == 2
    for secret in (str(managed.login(_OF_POSTGRES[0]).password), _PASSWORD):
        assert secret not in checked.stdout + checked.stderr + refused.stdout + refused.stderr


def resolve(monkeypatch: pytest.MonkeyPatch, places: dict[tuple[str, int], int]) -> None:
    """Resolve these hosts and ports to ports of 127.0.0.1."""
    before = socket.getaddrinfo

    def looked_up(host: Any, port: Any, *more: Any, **named: Any) -> Any:
        known = places.get((host, port))
        return before(*((host, port) if known is None else ("127.0.0.1", known)), *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)


def found(printed: str) -> dict[str, bool | None]:
    """Return the findings of `doctor`."""
    return {one["name"]: one["ok"] for one in json.loads(printed)["findings"]}


@every_case("url", REFUSED)
@pytest.mark.parametrize("command", ["migrate", "serve", "doctor"])
def test_a_string_of_another_driver_or_pooler_is_refused_by_name(
    lethe: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str, command: str
) -> None:
    variable = "DATABASE_URL" if "postgres" in url else "REDIS_URL"
    monkeypatch.setenv(variable, url)
    ran = lethe(command, "--home", tmp_path)
    assert (ran.status, ran.stdout) == (2, "")
    assert variable in ran.stderr
    assert REFUSED[url] in ran.stderr.replace("\n", " ")
    assert "ter2" not in ran.stderr
