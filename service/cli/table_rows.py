"""Rows of a table in a file, as additions, corrections and deletions name them."""

import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

#: Rows that become Python objects at a time.
_ROWS = 1 << 16


def nodes_in(
    file: Path, *, id: str, label: str | None, features: Sequence[str] | None, missing: Literal["refuse", "zero"]
) -> list[dict[str, Any]]:
    """Return the members `id`, `features` by column, and `label` of each row.

    `label` is None for the column `label`, if there is one, and `features` for all other columns. Raises GraphError.
    """
    from model_store.datasets.tables import open_table
    from projector.errors import GraphError
    from projector.graph.arrow import check_names, listed, require
    from projector.graph.tensors import looks_like

    origin, source = str(file), open_table(file, text=[id])
    names = check_names(origin, source)
    label = label or ("label" if "label" in names else None)
    roles = [("id", id), *([] if label is None else [("label", label)])]
    require(origin, names, [*roles, *(("features", name) for name in features or ())])
    taken = {name for _, name in roles}
    wanted = [name for name in names if name not in taken] if features is None else list(features)
    if features is None and (meant := [name for name in wanted if looks_like(name)]):
        raise GraphError(
            f"{origin}: the columns {listed(meant)} look like ids, a split or weights and would be sent as features.",
            "List the columns to send with --features.",
        )
    found, absent = [], dict.fromkeys(wanted, 0)
    for row in _rows(origin, source, [*dict.fromkeys([*taken, *wanted])], id):
        values = {name: _value(row[name]) for name in wanted}
        for name in [name for name, value in values.items() if value is None]:
            absent[name] += 1
            del values[name]
        node: dict[str, Any] = {"id": row[id]}
        if wanted:
            node["features"] = values
        if label is not None and (given := _label(row[label])) is not None:
            node["label"] = given
        found.append(node)
    if missing == "refuse" and any(absent.values()):
        counts = ", ".join(f"{count:,} in {name!r}" for name, count in absent.items() if count)
        raise GraphError(f"{origin}: values are missing: {counts}.", "Fill them in, or send 0 with --missing zero.")
    return found


def ids_in(file: Path, *columns: str) -> list[tuple[str, ...]]:
    """Return the ids in these columns of each row. Raises GraphError."""
    from model_store.datasets.tables import open_table
    from projector.graph.arrow import check_names, require

    origin, source = str(file), open_table(file, text=columns, in_parts=True)
    role = "id" if len(columns) == 1 else "source, --target"
    require(origin, check_names(origin, source), [(role, name) for name in columns])
    return [tuple(row[name] for name in columns) for row in _rows(origin, source, columns, *columns)]


def edges_in(file: Path, first: str, second: str, weight: str | None) -> list[str | list[str | float]]:
    """Return the two ids of each row, and its weight if that has a column. Raises GraphError."""
    from model_store.datasets.tables import open_table
    from projector.errors import GraphError
    from projector.graph.arrow import check_names, require
    from projector.graph.tensors import looks_like

    columns = [first, second, *([] if weight is None else [weight])]
    origin, source = str(file), open_table(file, text=columns[:2], numbers=columns[2:], in_parts=True)
    names = check_names(origin, source)
    require(origin, names, list(zip(("source", "target", "weight"), columns, strict=False)))
    for name in names:
        if weight is None and name not in columns and (what := looks_like(name)) is not None:
            raise GraphError(
                f"{origin}: the column {name!r} looks like {what} and would not be sent.",
                "Name it with --weight if it holds weights, or leave it out.",
            )
    return [[row[name] for name in columns] for row in _rows(origin, source, columns, first, second)]


def _rows(origin: str, source: Any, names: Sequence[str], *ids: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table, with `ids` as text. Raises GraphError."""
    from projector.errors import GraphError
    from projector.graph.arrow import plain, pyarrow, read, readable
    from projector.graph.table_edges import keys_of

    pa = pyarrow()
    table = read(origin, source, names)
    with readable(origin):
        columns = {name: plain(table.column(name)) for name in names}
        for name in ids:
            if table.column(name).null_count:
                raise GraphError(f"{origin}: ids are missing in the column {name!r}.", "Give each row an id.")
            columns[name] = keys_of(origin, name, table.column(name)).cast(pa.large_string())
        for batch in pa.table(columns).to_batches(_ROWS):
            yield from batch.to_pylist()


def _value(value: Any) -> Any:
    """Return a value as JSON has it; None if it is missing."""
    if isinstance(value, bool | Decimal):
        return float(value)
    return None if isinstance(value, float) and math.isnan(value) else value


def _label(value: Any) -> Any:
    """Return a class as text, or targets as floats; None if it is missing."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else _value(value)
