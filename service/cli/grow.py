"""`lethe add` and `lethe correct`: add nodes and edges to the graph, and correct nodes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import typer

from lethe_client import Accepted, Correction, NewNode
from model_store.datasets.table_names import is_table
from service.cli import table_options
from service.cli.console import Json, read_lines
from service.cli.requesting import Manner, Reference, SaltsFile, Timeout, Wait, send
from service.cli.server import Home, Key, Url, connect
from service.cli.table_options import columns_of
from service.cli.table_rows import edges_in, nodes_in
from service.log.canonical import RepeatedMember, parse_json

Node = Annotated[str | None, typer.Argument(metavar="[NODE]", help="Id of the node.")]
Row = Annotated[
    str | None,
    typer.Option(
        "--features",
        help="JSON: a list of one number per column, or an object with values by column. With a table as --file: its "
        "columns that are features, with commas; by default all others.",
    ),
]
LabelOf = Annotated[
    str | None,
    typer.Option(
        "--label",
        help="Its class; for a regression, its targets as a JSON list. With a table as --file: the column with the "
        "labels; by default `label`, if there is one.",
    ),
]


#: Features in a line of a file.
GivenFeatures = list[float] | dict[str, float | bool | str | list[float]]
_Label = str | float | list[float]


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """A line of a file for `add`."""

    id: str | None = None
    features: GivenFeatures | None = None
    label: _Label | None = None
    rejoin: bool = False
    #: Ids of neighbours or pairs of ids, each with a weight after it or without.
    edges: list[str | list[str | float]] = []


class _CorrectedLine(msgspec.Struct, forbid_unknown_fields=True):
    """A line of a file for `correct`."""

    id: str
    features: GivenFeatures | None = None
    label: _Label | None = None


_Edge = tuple[str, str] | tuple[str, str, float]


class _Growth(NamedTuple):
    """A node, an edge, or a node with the edges to nodes before it."""

    node: NewNode | None
    edges: list[_Edge]


def add(
    node: Node = None,
    features: Row = None,
    label: LabelOf = None,
    edge: Annotated[
        list[str] | None, typer.Option("--edge", metavar="NODE", help="A neighbour of the node; repeatable.")
    ] = None,
    rejoin: Annotated[
        bool, typer.Option("--rejoin", help="Add it although an earlier request deleted it: the person came back.")
    ] = False,
    file: Annotated[
        Path | None,
        typer.Option(
            help="File with one JSON object per line, a node or edges; - reads stdin. Or a table of nodes: .parquet, "
            ".feather or .csv."
        ),
    ] = None,
    edges: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="Table of edges to add.")] = None,
    id: table_options.Id = "id",
    source: table_options.Source = "source",
    target: table_options.Target = "target",
    weight: table_options.Weight = None,
    missing: table_options.Missing = "refuse",
    reference: Reference = None,
    salts: SaltsFile = None,
    wait: Wait = False,
    timeout: Timeout = 300.0,
    url: Url = None,
    key: Key = None,
    home: Home = Path("var"),
    as_json: Json = False,
) -> None:
    """Add nodes and edges to the graph. Nodes with a label are trained on. Requires the scope graph:write.

    A file that is too long for one request is sent in several.

    Examples:

    [bold]./lethe add anna --features '{"3": 1, "17": 0.5}' --edge 12 --edge 57 --wait[/bold]

    [bold]./lethe add --file new.jsonl[/bold]   (one object per line, as below)

    {"id": "anna", "features": {"3": 1}, "label": "2", "edges": ["12"]}

    {"edges": [["12", "57"]]}

    {"edges": [["12", "57", 2.5]]}   (with a weight; at a node's own line, ["57", 2.5])

    [bold]./lethe add --file new.parquet --id user_id --label segment --edges follows.parquet[/bold]
    """
    if file is not None and is_table(file):
        _require_no_node(node, edge)
        rows = nodes_in(file, id=id, label=label, features=columns_of(features), missing=missing)
        lines = [_Line(**row, rejoin=rejoin) for row in rows]
    else:
        lines = [] if file is None else read_objects(file, _Line)
        if node is not None:
            lines.append(_Line(node, _features(features), _label(label), rejoin, list(edge or [])))
        elif features is not None or label is not None or edge or rejoin:
            raise typer.BadParameter("Give the id of the node.", param_hint="NODE")
    if edges is not None:
        lines.append(_Line(edges=edges_in(edges, source, target, weight)))
    items = _in_order(lines)
    if not items:
        raise typer.BadParameter("Give a node, or --file.", param_hint="NODE")
    with connect(url, key, home) as client:

        def request(part: Sequence[_Growth]) -> Accepted:
            nodes = [each.node for each in part if each.node is not None]
            return client.add(nodes, edges=[pair for each in part for pair in each.edges], reference=reference)

        send(client, items, request, Manner(salts, wait, timeout, as_json))


def correct(
    node: Node = None,
    features: Row = None,
    label: LabelOf = None,
    file: Annotated[
        Path | None,
        typer.Option(help="File with one JSON object per line; - reads stdin. Or a table: .parquet, .feather or .csv."),
    ] = None,
    id: table_options.Id = "id",
    missing: table_options.Missing = "refuse",
    reference: Reference = None,
    salts: SaltsFile = None,
    wait: Wait = False,
    timeout: Timeout = 300.0,
    url: Url = None,
    key: Key = None,
    home: Home = Path("var"),
    as_json: Json = False,
) -> None:
    """Replace the features, the label or both of nodes. The old ones are erased. Requires the scope graph:write.

    A file that is too long for one request is sent in several.

    Examples:

    [bold]./lethe correct 12 --label 3 --wait[/bold]

    [bold]./lethe correct --file corrected.jsonl[/bold]   (one object per line, as below)

    {"id": "12", "features": {"3": 1}, "label": "2"}

    [bold]./lethe correct --file corrected.parquet --id user_id --label segment[/bold]
    """
    if file is not None and is_table(file):
        _require_no_node(node, None)
        rows = nodes_in(file, id=id, label=label, features=columns_of(features), missing=missing)
        lines = [_CorrectedLine(**row) for row in rows]
    else:
        lines = [] if file is None else read_objects(file, _CorrectedLine)
        if node is not None:
            lines.append(_CorrectedLine(node, _features(features), _label(label)))
        elif features is not None or label is not None:
            raise typer.BadParameter("Give the id of the node.", param_hint="NODE")
    if not lines:
        raise typer.BadParameter("Give a node, or --file.", param_hint="NODE")
    if empty := [each.id for each in lines if each.features is None and each.label is None]:
        raise typer.BadParameter(f"{empty[0]!r} has neither features nor a label.", param_hint="--features")
    items = [Correction(each.id, each.features, each.label) for each in lines]
    with connect(url, key, home) as client:
        send(
            client, items, lambda part: client.correct(part, reference=reference), Manner(salts, wait, timeout, as_json)
        )


def _require_no_node(node: str | None, edge: Sequence[str] | None) -> None:
    if node is not None or edge:
        raise typer.BadParameter("Give either a node or a table of nodes.", param_hint="NODE")


def _in_order(lines: Sequence[_Line]) -> list[_Growth]:
    """Return the nodes of `lines`, each with its edges to nodes before it and to nodes of the graph, then other edges.

    So no part of the list has an edge to a node of a later part.
    """
    growths: dict[str, _Growth] = {}
    weights: dict[tuple[str, str], float] = {}
    for line in lines:
        if line.id is not None:
            if line.features is None:
                raise typer.BadParameter(f"{line.id!r} has no features; {{}} are all 0.", param_hint="--features")
            if line.id in growths:
                raise typer.BadParameter(f"{line.id!r} is given twice. Give it once.", param_hint="--file")
            growths[line.id] = _Growth(NewNode(line.id, line.features, line.label, line.rejoin), [])
        for edge in line.edges:
            pair, weight = _pair(line, edge)
            if weights.setdefault(pair, weight) != weight:
                raise typer.BadParameter(f"The edge {pair} has two weights. Give it once.", param_hint="--file")
    places = {node: place for place, node in enumerate(growths)}
    free: list[_Edge] = []
    for pair, weight in weights.items():
        later = max((end for end in pair if end in places), key=places.__getitem__, default=None)
        (free if later is None else growths[later].edges).append(pair if weight == 1 else (*pair, weight))
    return [*growths.values(), *(_Growth(None, [edge]) for edge in free)]


def _pair(line: _Line, edge: str | list[str | float]) -> tuple[tuple[str, str], float]:
    """Return the ends of an edge, in order, and its weight."""
    parts = [edge] if isinstance(edge, str) else edge
    *given, weight = [*parts, 1.0] if all(isinstance(part, str) for part in parts) else parts
    ends = [part for part in given if isinstance(part, str)]
    if len(given) == 1 and line.id is None:
        raise typer.BadParameter(f"The edge to {given[0]!r} has one end. Give pairs of ids.", param_hint="--file")
    if len(given) == 1:
        ends.append(str(line.id))
    if len(ends) != 2 or len(given) > 2 or isinstance(weight, str):
        raise typer.BadParameter(f"{edge} is not an edge: two ids, and a weight or none.", param_hint="--file")
    first, second = sorted(ends)
    return (first, second), float(weight)


def read_objects(file: Path, kind: type[Any]) -> list[Any]:
    """Return the objects of a file's lines. Raises BadParameter with the line's number."""
    found = []
    for number, line in enumerate(read_lines(file), start=1):
        try:
            found.append(_parsed(line, kind))
        except ValueError as error:
            raise typer.BadParameter(f"Line {number} does not fit: {error}.", param_hint="--file") from None
    return found


def _features(text: str | None) -> GivenFeatures | None:
    if text is None:
        return None
    try:
        found: GivenFeatures = _parsed(text, GivenFeatures)
        return found
    except ValueError as error:
        raise typer.BadParameter(
            f'{error}. Give JSON, such as [0, 1.5] or {{"1": 1.5}}.', param_hint="--features"
        ) from None


def _label(text: str | None) -> _Label | None:
    """Return a class by its name, or the targets of a regression, which are a JSON list."""
    if text is None or not text.startswith("["):
        return text
    try:
        found: list[float] = _parsed(text, list[float])
        return found
    except ValueError as error:
        raise typer.BadParameter(f"{error}. Give a list of numbers.", param_hint="--label") from None


def _parsed(text: str, kind: Any) -> Any:
    """Return JSON as an object of `kind`. Raises ValueError, also for a member that is given twice."""
    try:
        found = msgspec.json.decode(text, type=kind)
        # Only this notices a repeated member.
        parse_json(text.encode())
    except RepeatedMember as error:
        raise ValueError(error.detail.rstrip(".")) from None
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None
    return found
