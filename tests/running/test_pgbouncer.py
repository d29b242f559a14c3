"""PgBouncer's own program between Lethe and Postgres is refused by name, in session and in transaction mode.

Debian's package `pgbouncer` has it.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy.engine import make_url

from service.db import migrate, roles, schema
from service.db.postgres_urls import SESSION_SETTINGS
from service.errors import ConfigurationError, LetheError
from tests.support.processes.workers import free_port
from tests.support.programs import find_program

pytestmark = [pytest.mark.needs("pgbouncer"), pytest.mark.slow]


@contextmanager
def pooled(database_url: str, folder: Path, *options: str) -> Iterator[str]:
    """Run PgBouncer before a database, and yield the URL that leads through it."""
    at, port, file = make_url(database_url), free_port(), folder / "pgbouncer.ini"
    behind = f"host={at.host} port={at.port} user={at.username} password={at.password} dbname={at.database}"
    own = (f"listen_port = {port}", "listen_addr = 127.0.0.1", "unix_socket_dir =", "auth_type = any")
    file.write_text("\n".join((f"[databases]\n{at.database} = {behind}\n[pgbouncer]", *own, *options, "")))
    # It does not run as root.
    account = ("-u", "nobody") if os.geteuid() == 0 else ()
    program = subprocess.Popen([str(find_program("pgbouncer")), *account, str(file)], stderr=subprocess.PIPE, text=True)
    try:
        assert program.stderr is not None
        for line in program.stderr:
            if "process up" in line:
                break
        yield at.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
    finally:
        program.terminate()
        program.communicate()


@pytest.mark.parametrize("mode", ["session", "transaction"])
@pytest.mark.parametrize("ignores", [False, True])
async def test_a_pooler_is_refused_by_name_before_anything_has_changed(
    empty_database_url: str, tmp_path: Path, mode: str, ignores: bool
) -> None:
    settings = ", ".join(SESSION_SETTINGS)
    ignored = (f"ignore_startup_parameters = {settings}",) if ignores else ()
    with pooled(empty_database_url, tmp_path, f"pool_mode = {mode}", *ignored) as url:
        # It works for others.
        connection = await asyncpg.connect(url, statement_cache_size=0)
        assert await connection.fetchval("SELECT 1") == 1
        await connection.close()
        with pytest.raises(LetheError, match="a connection pooler such as PgBouncer") as refused:
            await migrate.upgrade(url)
        assert "Name Postgres itself" in refused.value.remedy
        with pytest.raises(ConfigurationError, match="a connection pooler such as PgBouncer"):
            await roles.open_engine(url, roles.API_ROLE)
    assert await schema.current(empty_database_url) is None
