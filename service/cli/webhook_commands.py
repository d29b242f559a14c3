"""`lethe webhooks`: receivers of request events.

These commands use the database directly, like `keys`: no API key can make Lethe send anything anywhere.
"""

import asyncio
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import UUID, uuid4

import typer

from service.cli.console import ExitStatus, Json, note, print_result, table
from service.cli.database import with_database
from service.cli.server import Home
from service.errors import NotFound
from service.settings import Settings, load_settings

if TYPE_CHECKING:
    from service.db.engine import Connection
    from service.webhooks.endpoints import Endpoint

_EndpointId = Annotated[UUID, typer.Argument(help="Id of the endpoint, from `lethe webhooks list`.")]


def add(
    address: Annotated[str, typer.Argument(help="URL to send events to, such as https://dsr.example/lethe.")],
    home: Home = Path("var"),
    as_json: Json = False,
) -> None:
    """Send the events of all requests to a URL from now on. Prints the secret that signs them, once.

    Lethe stores the secret encrypted. URLs outside of public addresses and LETHE_WEBHOOK_NETWORKS are refused.

    Example: [bold]./lethe webhooks add https://dsr.example/lethe[/bold]
    """
    from service.webhooks.endpoints import EndpointRepository, WebhookSecrets, checked_url
    from service.webhooks.posting import addresses_of

    checked_url(address)
    try:
        asyncio.run(addresses_of(address, load_settings(home=home).private_receivers))
    except socket.gaierror:
        note("Its host name does not resolve from here. Failed deliveries are retried for three days.")

    async def write(connection: "Connection", settings: Settings) -> tuple[UUID, str]:
        endpoints = EndpointRepository(connection)
        first = not [one for one in await endpoints.list() if one.removed_at is None]
        endpoint_id = uuid4()
        secret, encrypted = WebhookSecrets(settings.home / "keys").make(endpoint_id, first=first)
        await endpoints.add(endpoint_id, address, encrypted)
        return endpoint_id, secret

    endpoint_id, secret = with_database(home, write)
    note(f"Endpoint {endpoint_id} for {address}; its secret, shown only once:")
    print_result({"id": str(endpoint_id), "url": address, "secret": secret}, as_json, secret)


def list_(home: Home = Path("var"), as_json: Json = False) -> None:
    """List all endpoints, including removed ones.

    Example: [bold]./lethe webhooks list[/bold]
    """
    from service.webhooks.endpoints import EndpointRepository

    found = with_database(home, lambda connection, _: EndpointRepository(connection).list())
    rows = [(str(one.id), one.url, f"{one.created_at:%Y-%m-%d %H:%M}", _removed(one)) for one in found]
    titles = ("id", "address", "added (UTC)", "removed (UTC)")
    print_result({"endpoints": list(map(_facts, found))}, as_json, table("Webhook endpoints", titles, rows))


def remove(endpoint_id: _EndpointId, home: Home = Path("var"), as_json: Json = False) -> None:
    """Remove an endpoint. Its pending events are dropped.

    Example: [bold]./lethe webhooks remove 0197f3c2-6f6e-7c1a-9d55-0d7a5d3b2c11[/bold]
    """
    from service.webhooks.endpoints import EndpointRepository

    why = "It was removed."
    if not with_database(home, lambda connection, _: EndpointRepository(connection).remove(endpoint_id, why)):
        raise _unknown(endpoint_id)
    print_result({"id": str(endpoint_id)}, as_json, f"{endpoint_id} removed")


def ping(endpoint_id: _EndpointId, home: Home = Path("var"), as_json: Json = False) -> None:
    """Send one signed `ping` message to an endpoint now, and print its response.

    Sent from this machine, under the LETHE_WEBHOOK_NETWORKS set here. Exits with 1 unless the status is 200 to 299.

    Example: [bold]./lethe webhooks ping 0197f3c2-6f6e-7c1a-9d55-0d7a5d3b2c11[/bold]
    """
    from service.webhooks.endpoints import EndpointRepository
    from service.webhooks.posting import Poster
    from service.webhooks.sending import WebhookSender

    found = with_database(home, lambda connection, _: EndpointRepository(connection).get(endpoint_id))
    if found is None:
        raise _unknown(endpoint_id)
    settings = load_settings(home=home)
    sender = WebhookSender(settings.home / "keys", settings.private_receivers, Poster())
    answer = asyncio.run(sender.ping(found))
    print_result({"answer": answer.text, "is_delivered": answer.is_delivered}, as_json, answer.text)
    if not answer.is_delivered:
        raise typer.Exit(ExitStatus.FAILED)


def _facts(endpoint: "Endpoint") -> dict[str, object]:
    """Return the JSON members of an endpoint, without its secret."""
    names = ("id", "url", "created_at", "removed_at", "removal")
    return {name: getattr(endpoint, name) for name in names}


def _removed(endpoint: "Endpoint") -> str:
    return "" if endpoint.removed_at is None else f"{endpoint.removed_at:%Y-%m-%d %H:%M} {endpoint.removal}"


def _unknown(endpoint_id: UUID) -> NotFound:
    return NotFound(f"Unknown endpoint {endpoint_id}.", "`./lethe webhooks list` lists the endpoints.")
