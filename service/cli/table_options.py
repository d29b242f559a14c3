"""Options of the commands that read tables: which columns mean what."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from model_store.datasets.tables import TableFiles

Nodes = Annotated[
    Path | None,
    typer.Option(
        dir_okay=False, exists=True, help="Instead of --dataset: a table of nodes, .parquet, .feather or .csv."
    ),
]
Edges = Annotated[
    Path | None, typer.Option(dir_okay=False, exists=True, help="Table of edges, with one pair of ids per row.")
]
Id = Annotated[str, typer.Option("--id", help="Column of the table with the ids of nodes.")]
Source = Annotated[str, typer.Option(help="Column of the edges with the id of one end.")]
Target = Annotated[str, typer.Option(help="Column of the edges with the id of the other end.")]
Weight = Annotated[str | None, typer.Option(help="Column of the edges with their weights.")]
Label = Annotated[str, typer.Option(help="Column of the nodes with their classes or targets.")]
Features = Annotated[
    str | None,
    typer.Option(metavar="COLUMN,…", show_default="all others", help="Columns of the nodes that are features."),
]
Missing = Annotated[Literal["refuse", "zero"], typer.Option(help="What becomes of missing features.")]
DropInvalid = Annotated[
    bool,
    typer.Option("--drop-invalid", help="Drop self loops, and edges to nodes that are not among the nodes."),
]


def tables_of(
    nodes: Path | None,
    edges: Path | None,
    *,
    id: str,
    source: str,
    target: str,
    weight: str | None,
    label: str,
    split: str | None,
    features: str | None,
    missing: Literal["refuse", "zero"],
    drop_invalid: bool,
) -> "TableFiles | None":
    """Return the tables that the options name; None without `nodes`."""
    from model_store.datasets.tables import TableFiles
    from projector.graph.tables import TableOptions

    if nodes is None:
        if edges is not None:
            raise typer.BadParameter("needs --nodes FILE.", param_hint="--edges")
        return None
    options = TableOptions(
        id=id, source=source, target=target, weight=weight, label=label, split=split,
        features=columns_of(features), missing=missing, drop_invalid=drop_invalid,
    )  # fmt: skip
    return TableFiles(nodes, edges, options)


def columns_of(features: str | None) -> tuple[str, ...] | None:
    """Return the names in a list with commas."""
    return None if features is None else tuple(name.strip() for name in features.split(",") if name.strip())
