"""Each parameter that redis-py takes from a URL is used, or refused by name."""

import inspect
from pathlib import Path

import pytest
from redis.asyncio.connection import (
    URL_QUERY_ARGUMENT_PARSERS,
    AbstractConnection,
    BlockingConnectionPool,
    Connection,
    ConnectionPool,
    SSLConnection,
    UnixDomainSocketConnection,
)

from service.errors import ConfigurationError
from service.queue import redis_urls
from service.queue.connection import connect
from service.settings import load_settings
from tests.support.everyday import every_case
from tests.support.service.certificates import Certificate

TAKING = (
    AbstractConnection,
    BlockingConnectionPool,
    Connection,
    ConnectionPool,
    SSLConnection,
    UnixDomainSocketConnection,
)
#: Everything that `from_url` passes on.
REDIS_PY = {
    name
    for kind in TAKING
    for name, parameter in inspect.signature(kind.__init__).parameters.items()
    if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD) and name != "self"
} | {*URL_QUERY_ARGUMENT_PARSERS}
#: Used parameters, with a valid value for each.
USED = {
    "db": "3",
    "username": "lethe",
    "password": "hunter2",
    "client_name": "mine",
    "socket_timeout": "5.5",
    "socket_connect_timeout": "1.5",
    "socket_keepalive": "false",
    "health_check_interval": "30",
    "protocol": "3",
    "ssl_cert_reqs": "CERT_NONE",
    "ssl_ca_certs": "CERTIFICATE",
    "ssl_ca_path": "FOLDER",
    "ssl_certfile": "CERTIFICATE&ssl_keyfile=KEY",
    "ssl_keyfile": "KEY&ssl_certfile=CERTIFICATE",
    "ssl_password": "hunter2&ssl_certfile=CERTIFICATE&ssl_keyfile=KEY",
    "ssl_check_hostname": "False",
    "ssl_ciphers": "HIGH",
    "ssl_min_version": "772",
}
REFUSED = {
    "redis://:hunter2@h/queue": "the database after the last / must be a whole number",
    "redis://:hunter2@h/-1": "the database after the last / must be",
    "redis://:hunter2@h/0/1": "the database after the last / must be",
    "redis://:hunter2@h/0?db=1": "db is given twice",
    "redis://:hunter2@h?password=x": "password is given twice",
    "redis://:hunter2@h?db=x": "db must be",
    "redis://:hunter2@h?db=1&db=1": "db is given twice",
    "redis://:hunter2@h/0?ssl_cert_reqs=none": "ssl_cert_reqs needs rediss://",
    "rediss://:hunter2@h?ssl_cert_reqs=never": "ssl_cert_reqs must be",
    "rediss://:hunter2@h?ssl_cert_reqs=none&ssl_check_hostname=true": "ssl_check_hostname needs",
    "rediss://:hunter2@h?ssl_check_hostname=maybe": "ssl_check_hostname must be",
    "rediss://:hunter2@h?ssl_ca_certs=/nope": "ssl_ca_certs names no readable certificates",
    "rediss://:hunter2@h?ssl_certfile=/nope": "ssl_certfile and ssl_keyfile name no certificate",
    "rediss://:hunter2@h?ssl_keyfile=/nope": "ssl_keyfile and ssl_password need ssl_certfile",
    "rediss://:hunter2@h?ssl_ca_data=x": "ssl_ca_data is not a certificate",
    "rediss://:hunter2@h?ssl_ciphers=x": "ssl_ciphers names no known cipher",
    "rediss://:hunter2@h?ssl_cert_req=none": "did you mean ssl_cert_reqs?",
    "redis://:hunter2@h?protocol=4": "protocol must be 2 or 3",
    "redis://:hunter2@h?socket_timeout=0.1": "socket_timeout must be a number from 1 to 600",
    "redis://:hunter2@h?socket_timeout=nan": "socket_timeout must be",
    "redis://:hunter2@h?health_check_interval=often": "health_check_interval must be",
    "redis://:hunter2@h?client_name=": "client_name has no value",
    "redis://:hunter2@h:x/0": "port must be",
    "redis://:hunter2@a..b/0": "an invalid host name or address",
    "redis://:hun/ter2@h/0": "a / or ? in its user or password",
    "redis://:hun%ter2@h/0": "a % that begins no escape",
    "unix://:hunter2@h/0": "must be unix:///",
    "unix://:hunter2@/tmp/s?socket_keepalive=1": "socket_keepalive needs redis://",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("tls")
    made = Certificate.make(folder)
    return {"CERTIFICATE": str(made.certificate), "KEY": str(made.key), "FOLDER": str(folder)}


@every_case("name", sorted(REDIS_PY | {*USED}))
def test_each_parameter_of_redis_py_is_used_or_refused_by_name(name: str, files: dict[str, str]) -> None:
    scheme = "rediss" if name.startswith("ssl_") else "redis"
    if name not in USED:
        with pytest.raises(ValueError, match=name):
            redis_urls.read(f"{scheme}://h?{name}=1")
        return
    value = USED[name]
    for mark, path in files.items():
        value = value.replace(mark, path)
    with_it, without = (connect(f"{scheme}://h{more}").connection_pool for more in (f"?{name}={value}", ""))
    assert with_it.connection_kwargs != without.connection_kwargs
    # redis-py accepts the result.
    with_it.make_connection()  # type: ignore[no-untyped-call]  # redis gives it no types


@every_case("url", REFUSED)
def test_a_url_that_cannot_be_used_is_refused_by_the_name_of_the_setting_without_a_secret(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load_settings(redis_url=url)
    assert "(REDIS_URL): " in refused.value.detail
    assert REFUSED[url] in refused.value.detail
    assert "ter2" not in str(refused.value)


@every_case("name", sorted(redis_urls._KNOWN))
def test_a_misspelled_or_doubled_parameter_is_refused(name: str) -> None:
    for wrong in (name[:-1], f"{name}s", name.upper(), name.replace("_", "-")):
        if wrong not in redis_urls._KNOWN:
            with pytest.raises(ValueError, match=f"^'{wrong}' is not a parameter of"):
                redis_urls.read(f"rediss://h?{wrong}=1")
    with pytest.raises(ValueError, match=f"^{name} is given twice"):
        redis_urls.read(f"rediss://h?{name}=1&{name}=1")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://h", {"host": "h", "port": 6379}),
        ("redis://u:p%40@h:1/2", {"host": "h", "port": 1, "db": 2, "username": "u", "password": "p@"}),
        ("redis://[2001:db8::1]:1/", {"host": "2001:db8::1", "port": 1}),
        ("rediss://h?ssl_cert_reqs=none", {"host": "h", "port": 6379, "ssl_cert_reqs": "none"}),
        ("unix:///tmp/a%20b.sock?db=1", {"path": "/tmp/a b.sock", "db": 1}),
        ("unix://:p@/tmp/s", {"path": "/tmp/s", "password": "p"}),
    ],
)
def test_every_place_is_understood(url: str, said: dict[str, object]) -> None:
    assert redis_urls.read(url) == said


def test_a_timeout_that_a_process_needs_shorter_stays_shorter(tmp_path: Path) -> None:
    def timeout(url: str, own: float | None) -> float:
        found = connect(url, socket_timeout_s=own).connection_pool.connection_kwargs["socket_timeout"]
        assert isinstance(found, float)
        return found

    url = f"unix://{tmp_path}/s"
    assert (timeout(url, None), timeout(f"{url}?socket_timeout=30", None)) == (10.0, 30.0)
    assert (timeout(url, 0.5), timeout(f"{url}?socket_timeout=30", 0.5)) == (0.5, 0.5)
