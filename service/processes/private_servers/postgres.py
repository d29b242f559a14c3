"""The private Postgres: its data folder, its command line and its readiness."""

import shutil
import signal
import subprocess
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil

from service.errors import EmbeddedServerError
from service.private_files import sync_folder
from service.processes.private_servers.home import Home
from service.processes.private_servers.programs import ServerPlan, environment, find_postgres, server_account

#: Role and database of Lethe. The role is no superuser. It owns the tables and may create roles and databases.
ROLE = DATABASE = "lethe"
#: Logins of single processes, each with its own password; migrations grant their rights.
API, UNLEARNER = "lethe_api", "lethe_unlearner"
_PROCESSES = (API, UNLEARNER)
_STATUS_LINE = 7  # of postmaster.pid; see the server's miscadmin.h
_HBA = "host all all 127.0.0.1/32 scram-sha-256\n"
#: Values in a statement or a conflict must not reach the log: they would outlive a deletion. Connections are for up to
#: 64 answering processes, 11 each, and 20 for the rest; beyond the usual 100 they take 23 MiB of memory.
_SETTINGS = (
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
    "max_connections=800",
    "password_encryption=scram-sha-256",
    "log_min_error_statement=panic",
    "log_error_verbosity=terse",
    "log_timezone=UTC",
    "timezone=UTC",
    "jit=off",
)
#: For servers that live only for a test: commits still survive a crash of the server itself. Without autovacuum, whose
#: workers belong to the superuser and would keep an owner from dropping a database.
_NOT_DURABLE = ("fsync=off", "full_page_writes=off", "autovacuum=off")


class Postgres:
    """One private Postgres below a LETHE_HOME; creates its data folder if missing."""

    name = "postgres"

    def __init__(self, home: Home, *, durable: bool) -> None:
        self.folder = home.postgres
        self.log = home.logs / "postgres.log"
        self._home = home
        self._durable = durable
        self._account = server_account(self.folder)

    @cached_property
    def _programs(self) -> Path:
        return find_postgres(self._account, _data_version(self.folder))

    def prepare(self, lock: int) -> None:
        """Create the data folder and the passwords if missing. Raises EmbeddedServerError.

        Every start resets the passwords, and the settings that logins have changed for themselves.
        """
        logins = "".join(_login(role, self._home.password(_secret(role))) for role in (ROLE, *_PROCESSES))
        if self.folder.exists():
            self._single_user(self.folder, logins, lock)
        else:
            self._create_cluster(logins, lock)

    def plan(self, port: int) -> ServerPlan:
        """Return the guardian's plan for the server on `port`."""
        settings = (f"port={port}", *_SETTINGS, *(() if self._durable else _NOT_DURABLE))
        return ServerPlan(
            name=self.name,
            argv=[
                str(self._programs / "postgres"),
                "-D",
                self._account.folder_argument(self.folder),
                *(part for setting in settings for part in ("-c", setting)),
            ],
            folder=self.folder,
            log=self.log,
            account=self._account,
            stop_signals=(signal.SIGINT, signal.SIGQUIT, signal.SIGKILL),
        )

    def is_ready(self, pid: int, port: int) -> bool:
        """Return whether process `pid` serves on `port`, from the server's own pid file."""
        lines = _postmaster_lines(self.folder)
        return (
            len(lines) > _STATUS_LINE
            and lines[0] == str(pid)
            and lines[3] == str(port)
            and lines[_STATUS_LINE].strip() == "ready"
        )

    def main_process(self) -> psutil.Process | None:
        """Return the process that serves the data folder now, or None."""
        lines = _postmaster_lines(self.folder)
        try:
            process = psutil.Process(int(lines[0]))
        except (psutil.Error, IndexError, ValueError):
            return None
        return process if works_in(process, self.folder, "postgres") else None

    def clear_stale_files(self) -> None:
        """Remove the pid file of a server that is known to be gone.

        Postgres itself trusts the file if another process of the same account has reused the number.
        """
        (self.folder / "postmaster.pid").unlink(missing_ok=True)

    def recover(self) -> bool:
        """Return False: Postgres recovers from a crash by itself, and nothing else can be tried."""
        return False

    def _create_cluster(self, logins: str, lock: int) -> None:
        staging = self.folder.with_name("postgres.new")
        shutil.rmtree(staging, ignore_errors=True)
        self._account.make_folder(staging)
        data = self._account.folder_argument(staging)
        initdb: list[str | Path] = [
            self._programs / "initdb",
            "-D",
            data,
            "-U",
            "postgres",
            "-E",
            "UTF8",
            "--locale=C",
            "--data-checksums",
        ]
        # `trust` never applies: pg_hba.conf is replaced before the server first listens.
        self._run([*initdb, "-A", "trust", "--no-sync", "--no-instructions"], staging, lock)
        (staging / "pg_hba.conf").write_text(_HBA)
        self._single_user(staging, f"{logins}CREATE DATABASE {DATABASE} OWNER {ROLE}\n", lock)
        if self._durable:
            self._run([*initdb, "--sync-only"], staging, lock)
        staging.rename(self.folder)
        sync_folder(self.folder.parent)

    def _single_user(self, folder: Path, statements: str, lock: int) -> None:
        """Run statements, one per line, without a listening server."""
        self._run(
            [
                self._programs / "postgres",
                "--single",
                "-D",
                self._account.folder_argument(folder),
                *("-c", "log_min_error_statement=panic", "-c", "exit_on_error=on"),
                *(() if self._durable else ("-c", "fsync=off")),
                "postgres",
            ],
            folder,
            lock,
            statements,
        )

    def _run(self, argv: Sequence[str | Path], folder: Path, lock: int, statements: str | None = None) -> None:
        """Run a program under the server's account. Raises EmbeddedServerError."""
        account: dict[str, Any] = {}
        if self._account.is_other:
            account = {"user": self._account.uid, "group": self._account.gid, "extra_groups": []}
        try:
            done = subprocess.run(
                argv,
                cwd=folder,
                env=environment(),
                input=statements,
                stdin=subprocess.DEVNULL if statements is None else None,
                capture_output=True,
                text=True,
                check=False,
                # If this process is killed, the next start waits for the program.
                pass_fds=(lock,),
                **account,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise EmbeddedServerError(f"{argv[0]} cannot be run: {error}.", "Set DATABASE_URL instead.") from error
        if done.returncode != 0:
            printed = "\n".join((done.stdout + done.stderr).strip().splitlines()[-10:])
            raise EmbeddedServerError(
                f"The private postgres server did not start. Preparing its data in {folder} failed:\n{printed}\n",
                "Fix the cause shown above (often a full disk). If the data is damaged, restore LETHE_HOME from "
                "a backup.",
            )


def database_url(home: Home, port: int, role: str = ROLE) -> str:
    """Return the URL of Lethe's database, including the password, in the form that every Postgres client reads."""
    password = home.password(_secret(role))
    return f"postgresql://{role}:{password}@127.0.0.1:{port}/{DATABASE}"


def _secret(role: str) -> str:
    """Return the name of a role's password."""
    return role.replace(ROLE, Postgres.name, 1).replace("_", "-")


def _login(role: str, password: str) -> str:
    """Return statements, one per line, that create or update a role's login with a password."""
    lines = [
        f"DO $$ BEGIN IF to_regrole('{role}') IS NULL THEN CREATE ROLE {role}; END IF; END $$",
        f"ALTER ROLE {role} LOGIN {'CREATEDB CREATEROLE ' if role == ROLE else ''}CONNECTION LIMIT -1 "
        f"VALID UNTIL 'infinity' PASSWORD '{password}'",
        f"ALTER ROLE {role} RESET ALL",
        f"DO $$ BEGIN IF EXISTS (SELECT FROM pg_database WHERE datname = '{DATABASE}') THEN "
        f"ALTER ROLE {role} IN DATABASE {DATABASE} RESET ALL; END IF; END $$",
    ]
    if role != ROLE:
        # The owner may act as these roles, like any role that creates others.
        lines.append(f"GRANT {role} TO {ROLE} WITH ADMIN OPTION")
    return "".join(f"{line}\n" for line in lines)


def works_in(process: psutil.Process, folder: Path, *programs: str) -> bool:
    """Return whether a live process is one of `programs` and works in `folder`."""
    try:
        return process.name() in programs and Path(process.cwd()).samefile(folder)
    except (psutil.Error, OSError):
        return False


def _postmaster_lines(folder: Path) -> list[str]:
    try:
        return (folder / "postmaster.pid").read_text().splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return []


def _data_version(folder: Path) -> int | None:
    try:
        return int((folder / "PG_VERSION").read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        raise EmbeddedServerError(
            f"{folder / 'PG_VERSION'} is damaged.", "Restore LETHE_HOME from a backup, or set DATABASE_URL."
        ) from None
