"""`lethe handle` and `lethe extend`: what a person decides of a request, each an event of the log."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from service.cli.console import Json, print_result
from service.cli.server import Home, Key, Url, connect

Reason = Annotated[str, typer.Option(help="Stays in the log forever: do not name a person, node or reference.")]


def handle(
    request_id: Annotated[str, typer.Argument(help="Id of the failed deletion request.")],
    reason: Reason,
    url: Url = None,
    key: Key = None,
    home: Home = Path("var"),
    as_json: Json = False,
) -> None:
    """Record how a failed deletion request was handled. Its list of ids is then destroyed.

    A later request for the same ids handles it automatically. Requires the scopes deletions:write and audit:read.

    Example: [bold]./lethe handle 0197f3c2-6f6e-7c1a-9d55-0d7a5d3b2c11 --reason "Withdrawn by letter."[/bold]
    """
    with connect(url, key, home) as client:
        handled = client.handle(request_id, reason)
    print_result(handled, as_json, f"{handled.id} handled")


def extend(
    request_id: Annotated[str, typer.Argument(help="Id of an open deletion request that is not late.")],
    until: Annotated[datetime, typer.Option(formats=["%Y-%m-%d"], help="New deadline: its last day (UTC).")],
    reason: Reason,
    url: Url = None,
    key: Key = None,
    home: Home = Path("var"),
    as_json: Json = False,
) -> None:
    """Extend the deadline of an open deletion request. Requires the scopes deletions:write and audit:read.

    Example: [bold]./lethe extend 0197f3c2-6f6e-7c1a-9d55-0d7a5d3b2c11 --until 2027-01-31 --reason "Many."[/bold]
    """
    end = until.replace(tzinfo=UTC) + timedelta(days=1, seconds=-1)
    with connect(url, key, home) as client:
        extended = client.extend(request_id, end, reason)
    print_result(extended, as_json, f"{extended.id} due {extended.due_at:%Y-%m-%d %H:%M:%S} UTC")
