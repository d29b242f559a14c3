"""Graphs from two tables, of nodes and of edges."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from projector.errors import GraphError
from projector.graph.arrow import (
    Source,
    StreamSource,
    check_names,
    is_text,
    listed,
    plain,
    pyarrow,
    read,
    readable,
    require,
)
from projector.graph.columns import NamedColumns
from projector.graph.external_ids import NodeIds
from projector.graph.graph import NO_LABEL, Graph, some, validate
from projector.graph.node_ids import RULE, is_allowed
from projector.graph.raw_graph import Masks, RawGraph
from projector.graph.table_edges import EdgeTable, keys_of, texts_of
from projector.graph.table_features import FeatureReader, Missing
from projector.graph.tensors import looks_like

if TYPE_CHECKING:
    import pyarrow as pa

#: Places of the words of a split, in lower case, among the masks.
_SPLIT_WORDS = {
    **dict.fromkeys(("train", "training", "true"), 0),
    **dict.fromkeys(("val", "valid", "validation"), 1),
    **dict.fromkeys(("test", "testing", "false"), 2),
}


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Which columns mean what, and what to do with rows that cannot be used."""

    id: str = "id"
    source: str = "source"
    target: str = "target"
    #: None if every edge has the weight 1.
    weight: str | None = None
    label: str = "label"
    #: None for the column `split`, if there is one.
    split: str | None = None
    #: None for all other columns of the nodes.
    features: tuple[str, ...] | None = None
    #: Whether missing features are refused or count as 0.
    missing: Missing = "refuse"
    #: Whether self loops, and edges with missing or unknown ends, are dropped instead of refused.
    drop_invalid: bool = False


@dataclass(frozen=True, kw_only=True)
class TableReport:
    """What was read from two tables, and what was not."""

    nodes: int
    #: Rows of the table of edges.
    edges: int
    #: Columns of the table that are features, and columns of X that they fill.
    columns: int
    features: int
    classes: tuple[str, ...]
    unlabelled: int
    #: Nodes without a label that the split names; they are in no set.
    unlabelled_in_split: int
    #: Columns that were not read.
    unread_of_nodes: tuple[str, ...]
    unread_of_edges: tuple[str, ...]
    #: Missing values that count as 0, and categories without a column because a single node has them, by column.
    missing: dict[str, int]
    rare_categories: dict[str, int]
    #: Dropped edges.
    unknown_ends: int
    self_loops: int
    #: The column of the split; None without one.
    split: str | None
    #: Edges that repeat others. Counted when the graph is made.
    merged: int = 0

    @property
    def read(self) -> str:
        """What was read, in a sentence."""
        return (
            f"Read {self.nodes:,} nodes, {self.unlabelled:,} of them without a label, {self.edges:,} rows of edges, "
            f"and {self.columns:,} columns as {self.features:,} features."
        )

    @property
    def dropped(self) -> list[str]:
        """What is not in the graph, in a sentence for each cause."""
        unread = {"nodes": self.unread_of_nodes, "edges": self.unread_of_edges}
        causes = [
            *((len(names), f"Columns of the {table} not read: {listed(names)}.") for table, names in unread.items()),
            *(
                (count, f"Missing values of {name!r} that count as 0: {count:,}.")
                for name, count in self.missing.items()
            ),
            *(
                (count, f"Categories of {name!r} that a single node has, and that have no column: {count:,}.")
                for name, count in self.rare_categories.items()
            ),
            (self.unlabelled_in_split, f"Nodes of the split without a label, in no set: {self.unlabelled_in_split:,}."),
            (self.unknown_ends, f"Dropped edges with missing or unknown ends: {self.unknown_ends:,}."),
            (self.self_loops, f"Dropped self loops: {self.self_loops:,}."),
            (self.merged, f"Merged edges that repeat others, in either direction: {self.merged:,}."),
        ]
        return [sentence for count, sentence in causes if count]


@dataclass(frozen=True, eq=False)
class Tables:
    """A graph read from tables."""

    raw: RawGraph
    report: TableReport


def from_tables(
    nodes: object,
    edges: object | None,
    *,
    id: str = "id",
    source: str = "source",
    target: str = "target",
    weight: str | None = None,
    label: str = "label",
    split: str | None = None,
    features: Sequence[str] | None = None,
    missing: Missing = "refuse",
    drop_invalid: bool = False,
) -> Graph:
    """Return the graph in two tables: objects with `__arrow_c_stream__`, such as of polars, DuckDB, pandas or pyarrow.

    `id` names the column of node ids, strings or integers; `source` and `target` the ends of edges, which count in
    both directions and once, with the weight in the column `weight`. `label` holds classes, strings or integers, or
    real-valued targets, floats or lists of floats; a missing one is none. `split` has the words train, validation and
    test, or booleans for train and test (default: the column `split`, or every node with a label trains). All other
    columns are features, or those in `features`: numbers, categories (text) one-hot, lists of numbers spread out;
    `Graph.columns` names them. `missing` features are refused, or "zero". With `drop_invalid`, self loops and edges
    with unknown ends are dropped. None for `edges` is a graph without any.

    Rows are nodes in their order; `Graph.node_ids.rows_of(ids)` finds them. Raises GraphError that names the problem,
    and MissingPackage without pyarrow.
    """
    options = TableOptions(
        id=id, source=source, target=target, weight=weight, label=label, split=split,
        features=None if features is None else tuple(features), missing=missing, drop_invalid=drop_invalid,
    )  # fmt: skip
    follows = None if edges is None else StreamSource("The table of edges", edges)
    read = read_tables(StreamSource("The table of nodes", nodes), follows, options)
    raw = read.raw.in_both_directions()
    nobody = np.zeros(raw.nodes, dtype=np.bool_)
    masks = raw.masks or Masks(raw.labels != NO_LABEL, nobody, nobody)
    graph = raw.graph(masks, dedupe=True)
    validate(graph)
    return graph


def read_tables(
    nodes: Source, edges: Source | None, options: TableOptions, names: tuple[str, str] = ("The nodes", "The edges")
) -> Tables:
    """Read a graph from a table of nodes and one of edges, called `names` in errors. Raises GraphError.

    The edges are as the table has them: no direction is added. None has no edges.
    """
    read_nodes = _Nodes(names[0], nodes, options)
    if edges is None:
        wanted = [options.source, options.target, *([options.weight] if options.weight else [])]
        edges = StreamSource(names[1], pyarrow().table({name: [] for name in wanted}))
    ends = (options.source, options.target)
    read_edges = EdgeTable(names[1], edges, ends=ends, weight=options.weight, drop_invalid=options.drop_invalid)
    edge_index = read_edges.between(read_nodes.keys)
    raw = RawGraph.of(
        names[0],
        edge_index=edge_index,
        edge_weight=read_edges.weights,
        features=read_nodes.features,
        labels=read_nodes.labels,
        masks=() if read_nodes.masks is None else read_nodes.masks,
        node_ids=read_nodes.ids,
        names=read_nodes.label_names,
        columns=read_nodes.columns,
    )
    report = TableReport(
        nodes=raw.nodes,
        edges=read_edges.rows,
        columns=len(read_nodes.columns.columns),
        features=read_nodes.columns.width,
        classes=raw.class_names,
        unlabelled=int((raw.labels == NO_LABEL).sum()),
        unlabelled_in_split=read_nodes.unlabelled_in_split,
        unread_of_nodes=tuple(read_nodes.unread),
        unread_of_edges=tuple(read_edges.unread),
        missing=read_nodes.reader.absent,
        rare_categories=read_nodes.reader.rare,
        unknown_ends=read_edges.unknown,
        self_loops=read_edges.loops,
        split=read_nodes.split,
    )
    return Tables(raw, report)


class _Nodes:
    """The table of nodes, read."""

    def __init__(self, origin: str, source: Source, options: TableOptions) -> None:
        self.origin = origin
        names = check_names(origin, source)
        self.split = split = options.split or ("split" if "split" in names else None)
        roles = [("id", options.id), ("label", options.label), *([] if split is None else [("split", split)])]
        require(origin, names, roles)
        taken = [name for _, name in roles]
        wanted = self._features_of(names, taken, options.features)
        self.unread = [name for name in names if name not in {*taken, *wanted}]
        table = read(origin, source, [*dict.fromkeys((*taken, *wanted))])
        if not table.num_rows:
            raise GraphError(f"{origin} has no rows.", "Give one row for each node.")
        self.reader = FeatureReader(origin, options.missing)
        with readable(origin):
            self.keys = keys_of(origin, options.id, table.column(options.id))
            self.ids = self._ids(options.id)
            self.labels, self.label_names = self._labels(options.label, plain(table.column(options.label)))
            self.unlabelled_in_split = 0
            self.masks = None if split is None else self._masks(split, plain(table.column(split)))
            self.features, columns = self.reader.read(table.select(wanted))
        self.columns = NamedColumns(columns)

    def _features_of(self, names: Sequence[str], roles: Sequence[str], features: tuple[str, ...] | None) -> list[str]:
        if features is not None:
            require(self.origin, names, [("features", name) for name in features])
            if taken := sorted({*features} & {*roles}):
                raise GraphError(f"{self.origin}: {listed(taken)} cannot also be features.", "Leave them out.")
            return [*dict.fromkeys(features)]
        wanted = [name for name in names if name not in roles]
        for name in wanted:
            if (what := looks_like(name)) is not None:
                raise GraphError(
                    f"{self.origin}: the column {name!r} looks like {what} and would be a feature.",
                    "List the columns to use with `features` (--features), or name its role.",
                )
        if not wanted:
            raise GraphError(f"{self.origin} has no column of features.", "Give each node at least one.")
        return wanted

    def _ids(self, name: str) -> NodeIds:
        if self.keys.null_count:
            raise GraphError(
                f"{self.origin}: {self.keys.null_count:,} ids are missing in the column {name!r}.",
                "Give each node an id.",
            )
        ids = NodeIds.of(texts_of(self.keys))
        if repeated := some(ids.repeated()):
            raise GraphError(f"{self.origin}: ids are not unique: {repeated}.", "Give each node one row.")
        return ids

    def _labels(self, name: str, column: "pa.ChunkedArray") -> tuple[NDArray[Any], tuple[str, ...]]:
        """Return class numbers, (n,) int64, or targets, (n, C) float64, and their names."""
        pa = pyarrow()
        kind = column.type
        if pa.types.is_null(kind):
            return np.full(len(column), NO_LABEL), ()
        if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            targets, (found,) = FeatureReader(self.origin, "refuse").read(pa.table({name: column}))
            dense = targets if isinstance(targets, np.ndarray) else targets.toarray()
            return dense.astype(np.float64), tuple(f"{name}[{place}]" for place in range(found.width))
        if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
            return column.cast(pa.float64()).to_numpy(), (name,)
        if not (is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
            raise GraphError(
                f"{self.origin}: the labels in the column {name!r} are {kind}.",
                "Give strings or integers for classes, or floats for targets.",
            )
        encoded = column.combine_chunks().dictionary_encode()
        codes = encoded.indices.fill_null(-1).to_numpy()
        values = encoded.dictionary.to_pylist()
        order = sorted(range(len(values)), key=values.__getitem__)
        names = tuple(
            str(values[place]).lower() if pa.types.is_boolean(kind) else str(values[place]) for place in order
        )
        if refused := [each for each in names if not is_allowed(each)]:
            raise GraphError(f"{self.origin}: a label is {refused[0]!r:.80}.", f"Give labels of {RULE}.")
        rank = np.full(len(values) + 1, NO_LABEL, dtype=np.int64)
        rank[order] = np.arange(len(values))
        return rank[codes], names

    def _masks(self, name: str, column: "pa.ChunkedArray") -> tuple[NDArray[np.bool_], ...]:
        pa = pyarrow()
        if not (is_text(column.type) or pa.types.is_boolean(column.type)):
            raise GraphError(
                f"{self.origin}: the split in the column {name!r} is {column.type}.",
                "Give the words train, validation and test, or true for train and false for test.",
            )
        encoded = column.cast(pa.large_string()).combine_chunks().dictionary_encode()
        words = [word.strip().lower() for word in encoded.dictionary.to_pylist()]
        if unknown := [word for word in words if word and word not in _SPLIT_WORDS]:
            raise GraphError(
                f"{self.origin}: the split in the column {name!r} has {listed(unknown)}.",
                "Give the words train, validation and test; leave nodes of none of them empty.",
            )
        sets = np.array([_SPLIT_WORDS.get(word, -1) for word in [*words, ""]])[encoded.indices.fill_null(-1).to_numpy()]
        labels = self.labels.reshape(len(sets), -1)
        absent = (labels == NO_LABEL if labels.dtype.kind == "i" else np.isnan(labels)).all(axis=1)
        self.unlabelled_in_split = int((absent & (sets >= 0)).sum())
        return tuple((sets == place) & ~absent for place in range(3))
