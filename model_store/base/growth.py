"""Grow `base/`: append the entries of an edit, and find the slots that it replaces.

Nothing is visible before the index is replaced: readers ignore slots beyond those that it counts, and the next growth
overwrites them. Blanked slots are never reused: a writer that continues after losing its lease may still be blanking
them.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.base.arrays import BaseArrays, NewArray, NewTable, extend_table, write_table
from model_store.base.edit import Edit
from model_store.base.erasure import blanking, feature_slots, label_slots
from model_store.base.index import Generation, Index
from model_store.base.tables import Layout, layouts, starts_of_rows
from model_store.disk.durable import DurableChanges
from model_store.manifest import Manifest


def grow(
    base: BaseArrays, edit: Edit, manifest: Manifest, *, version: int, generation: Generation, changes: DurableChanges
) -> Index:
    """Append the additions and return the new index. It is open if the edit replaces features or labels."""
    earlier = edit.feature_rows[edit.feature_rows < edit.first_row]
    replaced = feature_slots(base, earlier, manifest.feature_layout) | label_slots(base, edit.label_rows)
    # Replaced slots are read as blank from here on, so they are not copied.
    base = BaseArrays(base.folder, blanking(base, replaced))
    index = replace(base.index, generation=generation, nodes=edit.nodes, grown_version=version)
    expected = layouts(manifest, index)
    # Unpredictable, as in an import.
    random = np.random.default_rng()
    for name, added in _added(edit, random).items():
        layout, known = expected[name], name in base.index.tables
        arrays = {
            array: NewArray(np.asarray(added.get(array, np.empty((0, width))), dtype=dtype), blank)
            for array, (dtype, width, blank) in layout.arrays.items()
        }
        count = len(next(iter(arrays.values())).values)
        if known and not count:
            continue
        new = NewTable(_starts(base, name, layout, count, edit), arrays)
        if known:
            table = extend_table(base, name, new, generation, changes)
        else:
            table = write_table(base.folder, name, new, generation, changes)
        index = index.with_table(name, table)
    return index


def _starts(base: BaseArrays, name: str, layout: Layout, count: int, edit: Edit) -> NDArray[np.int64]:
    """Return the first slot of each chunk of a table after `count` slots more, then the number of slots."""
    table = base.index.tables.get(name)
    slots = 0 if table is None else table.slots
    if layout.rows is None:
        return starts_of_rows(slots + count, layout.chunk_rows)
    rows = starts_of_rows(layout.rows, layout.chunk_rows)
    if layout.even:
        return rows
    # The slots of ids: those of full chunks are known, and the new ids follow.
    before = layout.rows - len(edit.ids)
    known = np.empty(0, dtype=np.int64) if table is None else table.starts[: -(-before // layout.chunk_rows)]
    return np.concatenate([known, slots + edit.ids.starts[rows[known.size :] - before]])


def _added(edit: Edit, random: np.random.Generator) -> dict[str, dict[str, NDArray[Any]]]:
    """Return the values that each array gets."""
    ids = edit.ids
    ends = np.concatenate([edit.edges, edit.edges[:, ::-1]])
    weights = np.ones(len(edit.edges)) if edit.edge_weight is None else edit.edge_weight
    return {
        "late_nodes": {"id_bytes": ids.lengths},
        "late_layout": {"id_slots": np.diff(ids.starts)},
        "late_ids": {"utf8": ids.utf8},
        "late_labels": _shuffled(_labels(edit), random),
        "late_features": _shuffled(_features(edit), random),
        # Without weights, the table has no values.
        "late_adjacency": _shuffled({"rows": ends[:, 0], "columns": ends[:, 1], "values": np.tile(weights, 2)}, random),
    }


def _labels(edit: Edit) -> dict[str, NDArray[Any]]:
    new = np.arange(edit.first_row, edit.nodes)
    arrays = {
        "rows": np.concatenate([new, edit.label_rows]),
        "labels": np.concatenate([edit.labels, edit.labels_of_rows]),
        "masks": np.concatenate([edit.masks, edit.masks_of_rows]),
    }
    targets = [each for each in (edit.targets, edit.targets_of_rows) if each is not None]
    if targets:
        return arrays | {"targets": np.concatenate(targets)}
    # A row without an entry has neither label nor masks.
    kept = (arrays["labels"] >= 0) | (arrays["masks"] > 0)
    return {name: values[kept] for name, values in arrays.items()}


def _features(edit: Edit) -> dict[str, NDArray[Any]]:
    if edit.features is None:
        return {}
    if isinstance(edit.features, np.ndarray):
        return {"rows": edit.feature_rows, "values": edit.features}
    stored = edit.features.tocoo()
    return {"rows": edit.feature_rows[stored.row], "columns": stored.col, "values": stored.data}


def _shuffled(arrays: dict[str, NDArray[Any]], random: np.random.Generator) -> dict[str, NDArray[Any]]:
    order = random.permutation(len(next(iter(arrays.values()), ())))
    return {name: values[order] for name, values in arrays.items()}
