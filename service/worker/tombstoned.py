"""Which parts of a graph were deleted by earlier requests: what a newly trained model must not bring back."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from model_store.erasure import Erasure
from model_store.tombstones import Kept
from projector.forgetting.batch import Removal
from projector.graph.graph import Graph
from service.db.engine import Engine
from service.db.tombstones import TombstoneRepository
from service.db.transactions import transaction
from service.domain.states import RequestKind
from service.vault.keyring import Keyring
from service.worker.kept_tombstones import require_keys, require_readable

#: A node, or the two ends of an edge, by external id.
Subject = TypeVar("Subject", str, tuple[str, str])

#: Subjects looked up at once.
_PAGE = 20_000


@dataclass(frozen=True, eq=False)
class Tombstoned:
    """What of a graph was deleted earlier, by row."""

    #: Nodes, (m,) int64.
    nodes: NDArray[np.int64]
    #: Nodes that are there and whose features were deleted, (k,) int64.
    feature_rows: NDArray[np.int64]
    #: Edges between nodes that are there, (l, 2) int64.
    edges: NDArray[np.int64]

    @classmethod
    def nothing(cls) -> "Tombstoned":
        """Of a graph of which nothing was deleted."""
        none = np.empty(0, dtype=np.int64)
        return cls(none, none, none.reshape(0, 2))

    def and_also(self, other: "Tombstoned") -> "Tombstoned":
        """What either names; they have nothing in common."""
        return Tombstoned(
            np.concatenate([self.nodes, other.nodes]),
            np.concatenate([self.feature_rows, other.feature_rows]),
            np.concatenate([self.edges, other.edges]),
        )

    def __bool__(self) -> bool:
        return bool(self.nodes.size or self.feature_rows.size or self.edges.size)

    def __str__(self) -> str:
        """How many of each there are, such as "2 nodes and 1 edge"."""
        counts = {
            "node": self.nodes.size,
            "node whose features were deleted": self.feature_rows.size,
            "edge": self.edges.shape[0],
        }
        return " and ".join(f"{count} {_plural(what, count)}" for what, count in counts.items() if count)

    def removals(self) -> list[Removal]:
        """The same as one removal per kind, to be carried out together."""
        removals = []
        if self.nodes.size:
            removals.append(Removal(nodes=self.nodes))
        if self.feature_rows.size:
            removals.append(Removal(features=self.feature_rows))
        if self.edges.size:
            removals.append(Removal(edges=self.edges))
        return removals

    def erasure(self) -> Erasure:
        """The same as what to overwrite on disk."""
        return Erasure(self.nodes, self.feature_rows, self.edges)


async def find_tombstoned(engine: Engine, keyring: Keyring, model: str, graph: Graph, kept: Kept) -> Tombstoned:
    """What of `graph` requests to `model` have deleted; rows that are erased already are left out.

    By the tombstones of the database, and by those `kept` in the store, which an older database does not know.

    Raises KeyMissing when a key is not here that tombstones were made with, StoreDamaged when some of `kept` cannot be
    read and may be nowhere else, and Unavailable.
    """
    require_keys(kept, keyring)
    await require_readable(engine, kept, model)
    hashes = kept.hashes
    async with transaction(engine) as connection:
        keyring.check(await TombstoneRepository(connection).key_fingerprints())
    rows = {node: row for row, node in enumerate(graph.node_ids) if node}
    ids = list(rows)
    deleted = await _find(engine, keyring, model, RequestKind.NODE, ids, hashes)
    nodes = _sorted([rows[node] for node in deleted])
    remaining = [node for node in ids if node not in deleted]
    featureless = await _find(engine, keyring, model, RequestKind.FEATURES, remaining, hashes)
    pairs = [(graph.node_ids[first], graph.node_ids[second]) for first, second in _edges(graph, nodes).tolist()]
    cut = await _find(engine, keyring, model, RequestKind.EDGE, pairs, hashes)
    gone = [[rows[first], rows[second]] for first, second in pairs if (first, second) in cut]
    return Tombstoned(
        nodes, _sorted([rows[node] for node in featureless]), np.array(gone, dtype=np.int64).reshape(-1, 2)
    )


async def _find(
    engine: Engine,
    keyring: Keyring,
    model: str,
    kind: RequestKind,
    subjects: Sequence[Subject],
    kept: frozenset[bytes],
) -> set[Subject]:
    """Those of `subjects` that were deleted, looked up under every tombstone key."""
    found: set[Subject] = set()
    for start in range(0, len(subjects), _PAGE):
        by_hash = await asyncio.to_thread(_hashes, keyring, model, kind, subjects[start : start + _PAGE])
        async with transaction(engine) as connection:
            found.update(by_hash[digest] for digest in await TombstoneRepository(connection).find(by_hash))
        found.update(by_hash[digest] for digest in by_hash.keys() & kept)
    return found


def _hashes(keyring: Keyring, model: str, kind: RequestKind, subjects: Sequence[Subject]) -> dict[bytes, Subject]:
    return {digest: subject for subject in subjects for digest in keyring.tombstone_hashes(model, kind, [subject])}


def _edges(graph: Graph, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Every edge once, (k, 2), but for those of `nodes`."""
    gone = np.zeros(graph.nodes, dtype=np.bool_)
    gone[nodes] = True
    both_ways = graph.adjacency.tocoo()
    once = (both_ways.row < both_ways.col) & ~gone[both_ways.row] & ~gone[both_ways.col]
    return np.column_stack([both_ways.row[once], both_ways.col[once]]).astype(np.int64)


def _sorted(rows: list[int]) -> NDArray[np.int64]:
    return np.sort(np.array(rows, dtype=np.int64))


def _plural(what: str, count: int) -> str:
    first, space, rest = what.partition(" ")
    return what if count == 1 else f"{first}s{space}{rest}"
