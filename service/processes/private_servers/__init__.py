"""Private Postgres and Valkey servers for users without their own; see `servers`."""

from service.processes.private_servers.servers import (
    Embedded,
    PrivateServers,
    open_servers,
    owns_database,
    private_servers,
    running_servers,
    with_private,
)

__all__ = [
    "Embedded",
    "PrivateServers",
    "open_servers",
    "owns_database",
    "private_servers",
    "running_servers",
    "with_private",
]
