"""Each documented libpq parameter is used, or refused by name; refused values are not quoted."""

import ssl
from pathlib import Path

import pytest

from service.db import postgres_urls
from service.errors import ConfigurationError
from service.settings import load_settings
from tests.support.everyday import every_case
from tests.support.service.certificates import Certificate

#: "Parameter Key Words" in libpq's documentation (Postgres 18), with a valid value for each.
LIBPQ = {
    "host": "db.example",
    "hostaddr": "192.0.2.1",
    "port": "5433",
    "dbname": "lethe",
    "user": "lethe",
    "password": "hunter2",
    "passfile": "PASSFILE",
    "require_auth": "scram-sha-256",
    "channel_binding": "require",
    "connect_timeout": "5",
    "client_encoding": "LATIN1",
    "options": "-c geqo=off",
    "application_name": "mine",
    "fallback_application_name": "mine",
    "keepalives": "0",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "5",
    "tcp_user_timeout": "1000",
    "replication": "database",
    "gssencmode": "require",
    "sslmode": "require",
    "requiressl": "1",
    "sslnegotiation": "direct&sslmode=require",
    "sslcompression": "1",
    "sslcert": "CERTIFICATE&sslkey=KEY&sslmode=require",
    "sslkey": "KEY&sslcert=CERTIFICATE&sslmode=require",
    "sslkeylogfile": "/tmp/keys",
    "sslpassword": "hunter2&sslcert=CERTIFICATE&sslkey=KEY&sslmode=require",
    "sslcertmode": "require",
    "sslrootcert": "CERTIFICATE&sslmode=verify-ca",
    "sslcrl": "CERTIFICATE&sslmode=require",
    "sslcrldir": "/etc/ssl/crl",
    "sslsni": "0",
    "requirepeer": "postgres",
    "ssl_min_protocol_version": "TLSv1.3&sslmode=require",
    "ssl_max_protocol_version": "TLSv1.2&sslmode=require",
    "min_protocol_version": "3.2",
    "max_protocol_version": "3.1",
    "krbsrvname": "postgres",
    "gsslib": "gssapi",
    "gssdelegation": "1",
    "scram_client_key": "x",
    "scram_server_key": "x",
    "service": "lethe",
    "servicefile": "/etc/pg_service.conf",
    "target_session_attrs": "read-write",
    "load_balance_hosts": "random",
    "oauth_issuer": "https://example.org",
    "oauth_client_id": "x",
    "oauth_client_secret": "x",
    "oauth_scope": "x",
}
USED = {
    *("host", "port", "dbname", "user", "password", "passfile", "connect_timeout", "options", "application_name"),
    *("fallback_application_name", "sslmode", "sslnegotiation", "sslcert", "sslkey", "sslpassword", "sslrootcert"),
    *("sslcrl", "ssl_min_protocol_version", "ssl_max_protocol_version", "target_session_attrs"),
}
#: As written by managed services, poolers and other drivers, with the message for each; None if it is used.
FROM_OUTSIDE = {
    "sslmode=require&channel_binding=prefer": None,
    "sslmode=require&channel_binding=require": "channel_binding must be prefer or disable",
    "sslmode=disable&gssencmode=disable&sslsni=1&keepalives=1": None,
    "ssl=true": None,
    "ssl=require": None,
    "ssl=maybe": "sslmode must be",
    "sslmode=REQUIRE": "sslmode must be",
    "sslrootcert=system": None,
    "sslrootcert=system&sslmode=require": "sslrootcert=system needs sslmode=verify-full",
    "sslmode=verify-full": "sslmode=verify-full needs sslrootcert",
    "sslmode=verify-ca&sslrootcert=/nope": "sslrootcert names no readable certificates",
    "sslrootcert=/nope": "sslrootcert needs sslmode=",
    "sslmode=prefer&sslcert=/nope": "sslcert needs sslmode=",
    "sslmode=require&sslkey=/nope": "sslkey and sslpassword need sslcert",
    "sslnegotiation=direct": "sslnegotiation=direct needs sslmode=",
    "sslmod=require": "did you mean sslmode?",
    "statement_timeout=5s&idle_session_timeout=1h&search_path=lethe": None,
    "idle_in_transaction_session_timeout=1s": "idle_in_transaction_session_timeout cannot be used: Lethe sets its own",
    "lock_timeout=1s": "lock_timeout cannot be used",
    "options=-c%20timezone%3DUTC": "options sets timezone",
    "options=-cLOCK_TIMEOUT%3D1s": "options sets lock_timeout",
    "options=--default-transaction-isolation%3Dserializable": "options sets default_transaction_isolation",
    "options=endpoint%3Dep-cool-name": None,
    "pgbouncer=true": "pgbouncer must be false",
    "prepareThreshold=0": "'prepareThreshold' is not a parameter",
    "connection_limit=5": "'connection_limit' is not a parameter",
    "schema=public": "'schema' is not a parameter",
    "target_session_attrs=standby": "target_session_attrs must be",
    "connect_timeout=0": "connect_timeout must be a whole number from 1 to 600",
    "connect_timeout=soon": "connect_timeout must be",
    "passfile=/nope": "passfile names no file",
    "sslmode": "sslmode has no value",
    "sslmode=require&sslmode=require": "sslmode is given twice",
    "user=other": "user is given twice",
    "dbname=other": "dbname is given twice",
    "application_name=%zz": "a % that begins no escape",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("tls")
    made = Certificate.make(folder)
    passfile = folder / "pgpass"
    passfile.touch(0o600)
    return {"CERTIFICATE": str(made.certificate), "KEY": str(made.key), "PASSFILE": str(passfile)}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home without certificates."""
    monkeypatch.setenv("HOME", str(tmp_path))


def with_files(text: str, files: dict[str, str]) -> str:
    for name, path in files.items():
        text = text.replace(name, path)
    return text


@every_case("name", LIBPQ)
def test_each_parameter_of_libpq_is_used_or_refused_by_name(name: str, files: dict[str, str]) -> None:
    base = "postgresql:///" if name in ("host", "port", "dbname", "user", "password") else "postgresql://u@h/d"
    url = f"{base}?{name}={with_files(LIBPQ[name], files)}"
    if name not in USED:
        with pytest.raises(ValueError, match=f"^{name} (must be|cannot be used)"):
            postgres_urls.read(url)
        return
    plain, found = postgres_urls.read(base), postgres_urls.read(url)
    assert vars(found) != vars(plain)


@every_case("parameters", FROM_OUTSIDE)
@pytest.mark.parametrize("variable", ["DATABASE_URL", "LETHE_API_DATABASE_URL", "LETHE_UNLEARNER_DATABASE_URL"])
def test_what_others_put_into_a_url_is_used_or_refused_by_name_of_setting_and_parameter(
    variable: str, parameters: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = FROM_OUTSIDE[parameters]
    monkeypatch.setenv(variable, f"postgresql://lethe:hunter2@db.example/lethe?{parameters}")
    if said is None:
        load_settings()
        return
    with pytest.raises(ConfigurationError) as refused:
        load_settings()
    assert refused.value.detail.startswith(f"{variable}: ")
    assert said in refused.value.detail
    assert "hunter2" not in str(refused.value)


@every_case("name", sorted(postgres_urls._KNOWN))
def test_a_misspelled_or_doubled_parameter_is_refused(name: str) -> None:
    for wrong in (name[:-1], f"{name}s", name.upper(), name.replace("_", "-")):
        if wrong not in postgres_urls._KNOWN:
            with pytest.raises(ValueError, match=f"^'{wrong}' is not a parameter of"):
                postgres_urls.read(f"postgresql://u@h/d?{wrong}=1")
    with pytest.raises(ValueError, match=f"^{name} is given twice"):
        postgres_urls.read(f"postgresql://u@h/d?{name}=1&{name}=1")


@pytest.mark.parametrize(
    ("url", "hosts", "ports"),
    [
        ("postgresql://u@h/d", ("h",), (5432,)),
        ("postgres://u@h:1/d", ("h",), (1,)),
        ("postgresql+asyncpg://u@h1:1,h2:2/d", ("h1", "h2"), (1, 2)),
        ("postgresql://u@h1,h2:2/d", ("h1", "h2"), (5432, 2)),
        ("postgresql://u@[2001:db8::1]:1/d", ("2001:db8::1",), (1,)),
        ("postgresql://%2Frun%2Fpostgresql/d", ("/run/postgresql",), (5432,)),
        ("postgresql:///d?host=/run/postgresql&port=1", ("/run/postgresql",), (1,)),
        ("postgresql:///d?host=h1,h2&port=1,2", ("h1", "h2"), (1, 2)),
        ("postgresql:///d", (), (5432,)),
    ],
)
def test_every_place_is_understood(url: str, hosts: tuple[str, ...], ports: tuple[int, ...]) -> None:
    found = postgres_urls.read(url)
    assert (found.hosts, found.ports, found.database) == (hosts, ports, "d")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hunter2@h:x/d",
        "postgresql://u:hunter2@h:0/d",
        "postgresql://u:hunter2@h:70000/d",
        "postgresql://u:hunter2@a..b/d",
        "postgresql://u:hunter2@h1,,h2/d",
        "postgresql://u:hun/ter2@h/d",
        "postgresql://u:hun?ter2=x@h/d",
        "postgresql://u:hun%ter2@h/d",
        "postgresql://u:hunter2@h/d?host=other",
        "postgresql://u:hunter2@h/d?password=other",
        "postgresql://u:hunter2@h1,h2/d?port=1,2,3",
    ],
)
def test_a_broken_url_is_refused_without_a_part_of_the_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load_settings(database_url=url)
    assert "DATABASE_URL" in refused.value.detail
    assert "ter2" not in str(refused.value)
    assert "hun" not in str(refused.value)


def test_a_port_that_the_url_leaves_out_is_libpqs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPORT", "5433")
    assert postgres_urls.read("postgresql://h1,h2:1/d").ports == (5433, 1)
    monkeypatch.setenv("PGPORT", "x")
    with pytest.raises(ConfigurationError, match="PGPORT must be a whole number"):
        load_settings(database_url="postgresql://h/d")


def test_a_password_may_hold_what_ends_nothing() -> None:
    found = postgres_urls.read("postgresql://u:a%40%2F%3Fb#c:d@h/d")
    assert (found.user, found.password, found.hosts) == ("u", "a@/?b#c:d", ("h",))


def test_modes_of_tls_verify_what_they_promise(files: dict[str, str]) -> None:
    def context(parameters: str) -> ssl.SSLContext:
        found = postgres_urls.read(f"postgresql://u@h/d?{with_files(parameters, files)}").arguments["ssl"]
        assert isinstance(found, ssl.SSLContext)
        return found

    full = context("sslmode=verify-full&sslrootcert=CERTIFICATE")
    authority = context("sslmode=verify-ca&sslrootcert=CERTIFICATE")
    assert (full.verify_mode, full.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert (authority.verify_mode, authority.check_hostname) == (ssl.CERT_REQUIRED, False)
    assert context("sslmode=require&sslcert=CERTIFICATE&sslkey=KEY").verify_mode == ssl.CERT_NONE
    assert context("sslrootcert=system").check_hostname
    assert context("sslmode=require&ssl_min_protocol_version=TLSv1.3").minimum_version == ssl.TLSVersion.TLSv1_3
