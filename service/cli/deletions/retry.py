"""`lethe retry`: queue a deletion request that failed again."""

from pathlib import Path
from typing import Annotated

import typer

from service.cli.console import Json, print_result
from service.cli.server import Home, Key, Url, connect


def command(
    request_id: Annotated[str, typer.Argument(help="Id of the failed deletion request.")],
    url: Url = None,
    key: Key = None,
    home: Home = Path("var"),
    as_json: Json = False,
) -> None:
    """Queue a failed deletion request again, once its cause is fixed (see `audit show`).

    Requires the scopes deletions:write and audit:read.

    Example: [bold]./lethe retry 0197f3c2-6f6e-7c1a-9d55-0d7a5d3b2c11[/bold]
    """
    with connect(url, key, home) as client:
        queued = client.retry(request_id)
    print_result(queued, as_json, f"{queued.id} {queued.status}")
