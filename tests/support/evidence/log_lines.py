"""Lines of an exported log, changed and signed again."""

import json
from typing import Any

from hypothesis import strategies as st

from service.log import export
from service.log.canonical import canonical
from service.log.checkpoints import Checkpoint, Signer, sign
from service.log.export import ExportedCheckpoint, ExportedLeaf
from service.log.merkle import Frontier, leaf_hash

#: One line of an export.
Line = dict[str, Any]


def leaf_at(lines: list[Line], index: int) -> Line:
    return next(line for line in lines if line.get("index") == index)


def other(value: Any, data: st.DataObject) -> Any:
    """Draw another value of the same kind."""
    if isinstance(value, dict):
        name = data.draw(st.sampled_from(sorted(value)))
        return value | {name: other(value[name], data)}
    if isinstance(value, str):
        place = data.draw(st.integers(0, len(value) - 1))
        replacement = "0" if value[place] != "0" else "1"
        return value[:place] + replacement + value[place + 1 :]
    if isinstance(value, int):
        return value + data.draw(st.sampled_from([-1, 1, 1000]))
    return value + 0.5 if isinstance(value, float) else "x"


def again(leaf_lines: list[Line], signer: Signer, sizes: list[int]) -> list[Line]:
    """Rebuild an export from the texts and events of these leaves, signed at these sizes, as an operator could."""
    tree = Frontier()
    leaves: list[ExportedLeaf] = []
    checkpoints: list[ExportedCheckpoint] = []
    for line in leaf_lines:
        digest = leaf_hash(line["leaf"].encode())
        tree.append(digest)
        leaves.append(ExportedLeaf(line["index"], line["leaf"], digest, tree.root, line["event"]))
        if tree.size in sizes:
            note = sign(Checkpoint(signer.public.name, tree.size, tree.root), [signer])
            checkpoints.append(ExportedCheckpoint(tree.size, note))
    body = list(export.lines(leaves, checkpoints))
    return [export.head(signer.public.name, "now"), *body, export.end(len(leaves), len(checkpoints))]


def saying(line: Line, members: Line) -> Line:
    """Return a leaf and its event with other members, and the matching hash."""
    changed = canonical(json.loads(line["leaf"]) | members)
    return line | {"leaf": changed.decode(), "event": line["event"] | members, "hash": leaf_hash(changed).hex()}
