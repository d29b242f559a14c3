"""Debian's own Postgres and Redis, which have TLS, unlike the builds that most tests run against."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from tests.support.processes.workers import free_port
from tests.support.programs import find_program
from tests.support.service.certificates import Certificate

#: Login that must present a certificate of the authority, and its database.
MUTUAL = "mutual"


@dataclass(frozen=True)
class TlsServer:
    """A server that accepts nothing but TLS on this port of 127.0.0.1."""

    port: int
    log: Path


@contextmanager
def tls_postgres(certificate: Certificate, authority: Certificate, login: str, password: str) -> Iterator[TlsServer]:
    """Run Postgres with two superusers, each with an empty database of its name: `login` and MUTUAL."""
    programs, port = Path(str(find_program("initdb"))).parent, free_port()
    with _folder() as folder:
        data, socket = folder / "data", folder
        (folder / "password").write_text(password)
        for name, path in (("ca", authority.certificate), ("cert", certificate.certificate), ("key", certificate.key)):
            shutil.copy(path, folder / name)
        _own(folder)
        _run(programs / "initdb", "-D", data, "-U", login, f"--pwfile={folder}/password", "--auth=scram-sha-256")
        rules = (
            f"hostssl all {MUTUAL} 127.0.0.1/32 scram-sha-256 clientcert=verify-ca",
            "hostssl all all all scram-sha-256",
        )
        (data / "pg_hba.conf").write_text("\n".join((*rules, "local all all trust", "")))
        options = {
            "ssl": "on",
            "ssl_ca_file": folder / "ca",
            "ssl_cert_file": folder / "cert",
            "ssl_key_file": folder / "key",
            "log_connections": "on",
            "listen_addresses": "127.0.0.1",
            "port": port,
            "unix_socket_directories": socket,
            "fsync": "off",
        }
        given = " ".join(f"-c {name}={value}" for name, value in options.items())
        log = folder / "log"
        _run(programs / "pg_ctl", "start", "--wait", "-D", data, "-l", log, "-o", given)
        try:
            statements = (
                f"CREATE ROLE {MUTUAL} SUPERUSER LOGIN PASSWORD '{password}'",
                *(f"CREATE DATABASE {name} OWNER {name}" for name in (login, MUTUAL)),
            )
            for statement in statements:
                _run(programs / "psql", "-h", socket, "-p", port, "-U", login, "-d", "postgres", "-qc", statement)
            yield TlsServer(port, log)
        finally:
            _run(programs / "pg_ctl", "stop", "--wait", "--mode=immediate", "-D", data)


@contextmanager
def tls_redis(certificate: Certificate, authority: Certificate) -> Iterator[tuple[TlsServer, redis.Redis]]:
    """Run Redis without persistence; yield it, and a client on its unix socket."""
    port = free_port()
    with _folder() as folder:
        socket, log = folder / "redis.sock", folder / "log"
        options = {
            "port": 0,
            "tls-port": port,
            "tls-cert-file": certificate.certificate,
            "tls-key-file": certificate.key,
            "tls-ca-cert-file": authority.certificate,
            "tls-auth-clients": "no",
            "unixsocket": socket,
            "dir": folder,
            "save": "",
        }
        command = [str(find_program("redis-server"))]
        command += [part for name, value in options.items() for part in (f"--{name}", str(value))]
        with log.open("wb") as written:
            process = subprocess.Popen(command, stdout=written, stderr=written)
        try:
            client = redis.Redis(unix_socket_path=str(socket))
            retry = redis.retry.Retry(redis.backoff.ConstantBackoff(0.05), retries=400)
            retry.call_with_retry(client.ping, lambda error: None)
            yield TlsServer(port, log), client
        finally:
            process.terminate()
            process.wait()


def _account() -> dict[str, str]:
    """Return the account for Postgres, which refuses to run as root."""
    return {"user": "nobody", "group": "nogroup"} if os.geteuid() == 0 else {}


@contextmanager
def _folder() -> Iterator[Path]:
    """Yield a folder below /tmp, since pytest's are closed to other accounts, and a socket's path must be short."""
    with tempfile.TemporaryDirectory(prefix="lethe-tls-") as made:
        yield Path(made)


def _own(folder: Path) -> None:
    for path in (folder, *folder.iterdir()):
        if account := _account():
            shutil.chown(path, **account)


def _run(program: Path, *arguments: object) -> None:
    """Run one of Postgres' programs. Raises CalledProcessError, whose notes have its output."""
    try:
        subprocess.run(
            [program, *map(str, arguments)],
            check=True,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **_account(),  # type: ignore[call-overload]
        )
    except subprocess.CalledProcessError as error:
        error.add_note(error.stdout)
        raise
