"""`lethe predict`: predictions of the served model, of some nodes, of all of them, or of nodes outside the graph."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from lethe_client import LetheClient, NodePrediction, OutsideNode, OutsidePrediction
from service.cli.console import ExitStatus, Json, note, print_result, read_lines, show_progress, table, written_whole
from service.cli.grow import GivenFeatures, read_objects
from service.cli.requesting import in_parts
from service.cli.server import Home, Key, Url, connect


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """A line of a file for `predict --new`."""

    features: GivenFeatures
    neighbours: list[str] = []


def predict(
    nodes: Annotated[list[str] | None, typer.Argument(metavar="[NODE]...", help="Ids of the nodes.")] = None,
    file: Annotated[Path | None, typer.Option(help="File with one id per line; - reads stdin.")] = None,
    new: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Nodes outside the graph: a file with one JSON object per line; - reads stdin."
        ),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All live nodes, by one model version. Needs --out.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="New file for --all, ending in .parquet, .arrow, .feather, .csv or .ndjson.")
    ] = None,
    url: Url = None,
    key: Key = None,
    home: Home = Path("var"),
    as_json: Json = False,
) -> None:
    """Predict the class of nodes with the current model.

    Exits with 3 if one of them is unknown or deleted. A list that is too long for one request is sent in several. Nodes
    outside the graph, of which Lethe stores nothing, need the scope predictions:new.

    Examples:

    [bold]./lethe predict 12 57[/bold]

    [bold]./lethe predict --file ids.txt --json[/bold]

    [bold]./lethe predict --all --out predictions.parquet[/bold]

    [bold]./lethe predict --new nodes.jsonl[/bold]   (one object per line, as below)

    {"features": {"3": 1}, "neighbours": ["12"]}
    """
    named = [*(nodes or []), *(read_lines(file) if file else [])]
    if [bool(named), new is not None, all_].count(True) != 1 or all_ != (out is not None):
        raise typer.BadParameter("Give ids of nodes or --file, or --new, or --all with --out.", param_hint="NODE")
    with connect(url, key, home) as client:
        if new is not None:
            _predict_new(client, read_objects(new, _Line), as_json)
        elif out is not None:
            _download(client, out)
        else:
            _predict(client, named, as_json)


def _predict(client: LetheClient, nodes: Sequence[str], as_json: bool) -> None:
    """Print the predictions of nodes of the graph."""
    missing = False
    for answer in in_parts(nodes, client.predict_many, patience_s=0.0):
        head, rows = ("node", "class", "probability"), [_cells(one.node, one) for one in answer.predictions]
        if any(one.scores for one in answer.predictions):
            head = ("node", "target", "score")
        text = [table(f"Model version {answer.model_version}", head, rows)] if rows else []
        print_result(answer, as_json, *text)
        for node in answer.deleted:
            note(f"{node}: deleted on request.")
        for node in answer.unknown:
            note(f"{node}: unknown node.")
        missing |= bool(answer.deleted or answer.unknown)
    if missing:
        raise typer.Exit(ExitStatus.NOT_FOUND)


#: Formats by the endings of file names.
_FORMATS: Mapping[str, Literal["parquet", "arrow", "csv", "ndjson"]] = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".csv": "csv",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
}


def _download(client: LetheClient, out: Path) -> None:
    """Write the predictions of all live nodes to a new file."""
    form = _FORMATS.get(out.suffix.lower())
    if form is None:
        raise typer.BadParameter(
            f"{out.name} does not name a format. End it in {', '.join(_FORMATS)}.", param_hint="--out"
        )
    with written_whole(out) as whole, show_progress("Receiving predictions"):
        for part in client.predictions(form):
            whole.write(part)
    note(f"Wrote {out}.")


def _predict_new(client: LetheClient, lines: Sequence[_Line], as_json: bool) -> None:
    """Print the predictions of nodes outside the graph by their line."""
    nodes, first = [OutsideNode(line.features, line.neighbours) for line in lines], 1
    if not nodes:
        raise typer.BadParameter("The file has no lines.", param_hint="--new")
    for answer in in_parts(nodes, client.predict_new, patience_s=0.0):
        rows = [_cells(str(first + place), one) for place, one in enumerate(answer.predictions)]
        head = ("line", "target", "score") if answer.predictions[0].scores else ("line", "class", "probability")
        print_result(answer, as_json, table(f"Model version {answer.model_version}", head, rows))
        first += len(rows)


def _cells(name: str, one: NodePrediction | OutsidePrediction) -> tuple[str, str, str]:
    """Return the cells for a node; a regression's targets share one cell."""
    if one.scores:
        return name, ", ".join(one.scores), ", ".join(f"{value:.4g}" for value in one.scores.values())
    return name, one.label, str(round(one.probabilities[one.label], 4))
