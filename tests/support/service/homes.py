"""The content of a LETHE_HOME and its database, for comparison."""

import hashlib
from pathlib import Path
from typing import Any

import asyncpg

from service.processes.private_servers import running_servers
from tests.support.processes.lethe_process import LetheProcess


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below `folder`."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def private_database(lethe: LetheProcess) -> str:
    """Return the URL of a running Lethe's private Postgres."""
    servers = running_servers(lethe.home)
    assert servers is not None
    assert servers.database_url is not None
    return servers.database_url


async def facts(database_url: str) -> dict[str, list[tuple[Any, ...]]]:
    """Return the database's facts on requests, events and batches."""
    connection = await asyncpg.connect(database_url)
    try:
        statements = {
            "requests": "SELECT status, count(*), sum(count) FROM requests GROUP BY status",
            "events": "SELECT type, count(*), count(DISTINCT request_id) FROM events GROUP BY type ORDER BY type",
            "batches": "SELECT sum(deleted_nodes), sum(requests), count(*) FILTER (WHERE finished_at IS NULL)"
            " FROM versions WHERE cause = 'batch'",
            "others": "SELECT count(*), count(*) FILTER (WHERE finished_at IS NULL)"
            " FROM versions WHERE cause IN ('import', 'recovery')",
            "steps": "SELECT number_before, number FROM versions WHERE cause = 'batch' ORDER BY number",
            "secrets": "SELECT (SELECT count(*) FROM outbox), count(ciphertext) FROM requests",
        }
        return {name: [tuple(row) for row in await connection.fetch(text)] for name, text in statements.items()}
    finally:
        await connection.close()
