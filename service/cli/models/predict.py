"""`lethe predict`: what the served model says of nodes."""

from pathlib import Path
from typing import Annotated

import typer

from lethe_client.results import NodePrediction
from service.cli.console import Json, note, print_result, table
from service.cli.exit_status import ExitStatus
from service.cli.server import Home, Key, Url, connect


def command(
    nodes: Annotated[list[str], typer.Argument(metavar="NODE...", help="Ids of the nodes.")],
    url: Url = None,
    key: Key = None,
    home: Home = Path("var"),
    as_json: Json = False,
) -> None:
    """Predict the class of nodes with the current model.

    Exits with 3 if one of them is unknown or deleted.

    Example: [bold]./lethe predict 12 57[/bold]
    """
    with connect(url, key, home) as client:
        answer = client.predict_many(nodes)
    head, rows = ("node", "class", "probability"), [_row(one) for one in answer.predictions]
    if any(one.scores for one in answer.predictions):
        head = ("node", "target", "score")
    text = [table(f"Model version {answer.model_version}", head, rows)] if rows else []
    print_result(answer, as_json, *text)
    for node in answer.deleted:
        note(f"{node}: deleted on request.")
    for node in answer.unknown:
        note(f"{node}: unknown node.")
    if answer.deleted or answer.unknown:
        raise typer.Exit(ExitStatus.NOT_FOUND)


def _row(one: NodePrediction) -> tuple[str, str, str]:
    """What is shown of a node; of a regression all targets in one cell."""
    if one.scores:
        return one.node, ", ".join(one.scores), ", ".join(f"{value:.4g}" for value in one.scores.values())
    return one.node, one.label, str(round(one.probabilities[one.label], 4))
