"""What earlier requests deleted: which parts of a newly trained graph, and the store's own record of tombstones."""

import asyncio
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import structlog
from numpy.typing import NDArray

from model_store.errors import StoreDamaged
from model_store.store import Store
from model_store.tombstones import KEY_BYTES, RecordedTombstone, TombstoneRecord
from model_store.work import Work
from projector.forgetting.batch import Removal
from projector.graph.graph import Graph
from projector.graph.ranges import parts_of_rows
from service.access.keyring import Keyring
from service.db.engine import Engine
from service.db.transactions import transaction
from service.domain.kinds import Part, RequestKind
from service.domain.records import Tombstone
from service.errors import KeyMissing, StateMismatch
from service.requests.tombstones import TombstoneRepository
from service.unlearner.context import Context
from service.unlearner.lease_keeper import LeaseKeeper

#: Nodes or edges looked up at once.
_PAGE = 20_000


@dataclass(frozen=True, eq=False)
class DeletedParts:
    """What of a graph was deleted earlier, by row."""

    #: Nodes, (m,) int64.
    nodes: NDArray[np.int64]
    #: Nodes that are there and whose features were deleted, (k,) int64.
    feature_rows: NDArray[np.int64]
    #: Edges between nodes that are there, (l, 2) int64.
    edges: NDArray[np.int64]

    @classmethod
    def nothing(cls) -> "DeletedParts":
        """Of a graph of which nothing was deleted."""
        none = np.empty(0, dtype=np.int64)
        return cls(none, none, none.reshape(0, 2))

    def and_also(self, other: "DeletedParts") -> "DeletedParts":
        """What either names; they have nothing in common."""
        return DeletedParts(
            np.concatenate([self.nodes, other.nodes]),
            np.concatenate([self.feature_rows, other.feature_rows]),
            np.concatenate([self.edges, other.edges]),
        )

    def within(self, live: NDArray[np.bool_], featured: NDArray[np.bool_]) -> "DeletedParts":
        """What of it is part of a version with these `live` and `featured` nodes, each (n,), on the disk or not."""
        return DeletedParts(
            nodes=self.nodes[live[self.nodes]],
            feature_rows=self.feature_rows[(live & featured)[self.feature_rows]],
            edges=self.edges[np.all(live[self.edges], axis=1)],
        )

    @property
    def counts(self) -> tuple[int, int, int]:
        """How many nodes, nodes' features and edges."""
        return self.nodes.size, self.feature_rows.size, len(self.edges)

    def __bool__(self) -> bool:
        return any(self.counts)

    def __str__(self) -> str:
        """How many of each there are, such as "2 nodes and 1 edge"."""
        counts = zip(("node", "node whose features were deleted", "edge"), self.counts, strict=True)
        return " and ".join(f"{count} {_plural(what, count)}" for what, count in counts if count)

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


async def find_deleted_parts(
    engine: Engine,
    keyring: Keyring,
    model: str,
    graph: Graph,
    own: Collection[Tombstone] = (),
    work: Work | None = None,
) -> DeletedParts:
    """What of `graph` requests to `model` have deleted; rows that are erased already are left out.

    `own` are tombstones that the database is about to be told of. Each part is a step of `work`. Raises KeyMissing when
    a key is not here that tombstones were made with, and Unavailable.
    """
    async with transaction(engine) as connection:
        tombstones = TombstoneRepository(connection)
        keyring.check(await tombstones.key_fingerprints())
        counts = {part: await tombstones.count(model, part) for part in Part}
    also, work = frozenset(one.hash for one in own), work or Work()

    async def find(part: Part, pages: Iterable[NDArray[np.int64]], amount: int) -> NDArray[np.int64]:
        """Those of the rows in `pages`, (k,), or (k, 2) for edges, of which this part was deleted, by any key."""
        found = [np.empty((0, 2) if part is Part.EDGES else 0, dtype=np.int64)]
        # A hash of every edge of a large graph takes minutes, and tells nothing where no edge was deleted.
        if not counts[part] and not any(one.kind.rules.removes is part for one in own):
            return found[0]
        work.begin(f"Looking for deleted {part.name.lower()}", amount)
        for page in pages:
            names = list(graph.node_ids.take(page.reshape(-1)))
            targets = names if page.ndim == 1 else list(zip(names[::2], names[1::2], strict=True))
            by_hash = await asyncio.to_thread(keyring.tombstone_hashes, model, part, targets)
            async with transaction(engine) as connection:
                known = await TombstoneRepository(connection).find(by_hash)
            deleted = {by_hash[digest] for digest in known.keys() | by_hash.keys() & also}
            found.append(page[[target in deleted for target in targets]])
            work.count(len(page))
        return np.concatenate(found)

    present = graph.node_ids.named
    nodes = await find(Part.NODES, _pages(np.flatnonzero(present)), int(present.sum()))
    present[nodes] = False
    features = await find(Part.FEATURES, _pages(np.flatnonzero(present)), int(present.sum()))
    return DeletedParts(nodes, features, await find(Part.EDGES, _edges(graph, present), graph.edges))


def _pages(rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    return (rows[start : start + _PAGE] for start in range(0, len(rows), _PAGE))


def _edges(graph: Graph, present: NDArray[np.bool_]) -> Iterator[NDArray[np.int64]]:
    """Every edge between nodes of the mask `present` (n,) once, (k, 2) at a time."""
    adjacency = graph.adjacency
    for first, end in parts_of_rows(adjacency.indptr, 2 * _PAGE):
        columns = adjacency.indices[adjacency.indptr[first] : adjacency.indptr[end]]
        rows = np.repeat(np.arange(first, end), np.diff(adjacency.indptr[first : end + 1]))
        once = (rows < columns) & present[rows] & present[columns]
        yield np.column_stack([rows[once], columns[once]])


def _plural(what: str, count: int) -> str:
    first, space, rest = what.partition(" ")
    return what if count == 1 else f"{first}s{space}{rest}"


#: By this name an operator accepts that some of the record are lost.
TOMBSTONES = "tombstones"
_BY_CODE = {kind.rules.tombstone_code: kind for kind in RequestKind}


def for_store(tombstones: Iterable[Tombstone], keyring: Keyring) -> list[RecordedTombstone]:
    """The same as the store keeps it, without the request; `keyring` has the keys that made them."""
    keys = {number: fingerprint[:KEY_BYTES] for number, fingerprint in keyring.fingerprints().items()}
    return [RecordedTombstone(one.hash, keys[one.key_number], one.kind.rules.tombstone_code) for one in tombstones]


async def only_in_store(engine: Engine, kept: TombstoneRecord, keyring: Keyring) -> list[Tombstone]:
    """What the record has and the database does not know.

    Raises Unavailable, and KeyMissing for what was made with a key that is not here: what it names could not be told.
    """
    numbers = {fingerprint[:KEY_BYTES]: number for number, fingerprint in keyring.fingerprints().items()}
    of_others = sum(one.key not in numbers for one in kept.tombstones)
    if of_others:
        raise KeyMissing(
            f"{of_others} of the model's tombstones were made with a key that is not in the key folder.",
            "Restore the key folder that belongs to the model; until then, deleted and unknown nodes look the "
            "same. If it is lost for good, move the files `tombstones-*` out of the model's folder. A newly "
            "trained model may then contain what they name.",
        )
    async with transaction(engine) as connection:
        known = await TombstoneRepository(connection).find(kept.hashes)
    unknown = [one for one in kept.tombstones if one.hash not in known]
    return [Tombstone(_BY_CODE[one.code], one.hash, numbers[one.key], None) for one in unknown]


def unreadable(kept: TombstoneRecord) -> StoreDamaged:
    """The error for tombstones that cannot be read and may be nowhere else."""
    return StoreDamaged(
        f"{', '.join(map(str, kept.damaged))} is damaged. It records deletions that the database, restored from "
        "an older backup, does not have.",
        "Replace it with the files `tombstones-*` from the newest backup of the model; the database adds what "
        f"they lack. Without a backup, `./lethe recover --accept-lost {TOMBSTONES}` continues with what can be "
        "read. Other deletions that this database does not have are forgotten: such nodes look unknown, and a "
        "newly trained model may contain them.",
    )


async def reconcile(context: Context, store: Store, keeper: LeaseKeeper) -> None:
    """Makes the store's record that of the database, of the same moment; damage is mended by that.

    Raises StateMismatch when the record has what the database does not know, KeyMissing, Unavailable and OSError.
    """
    kept = await context.run(store.tombstones)
    if own := await only_in_store(context.engine, kept, context.keyring):
        raise StateMismatch(
            f"The model has {len(own)} tombstones that the database does not have: the database was restored "
            "from an older backup.",
            f"Nothing was removed. Restore store and database from the same backup. {StateMismatch.RECOVER}",
        )
    async with transaction(context.engine) as connection:
        repository = TombstoneRepository(connection)
        context.keyring.check(await repository.key_fingerprints())
        if kept.is_tidy and await repository.count(context.model) == len(kept.hashes):
            return
        recorded = await repository.of_model(context.model)
    if kept.damaged:
        structlog.get_logger(__name__).warning("tombstones.damaged", model=context.model, readable=len(kept.tombstones))
    durable_changes = for_store(recorded, context.keyring)
    await context.run(partial(store.replace_tombstones, durable_changes, fencing=keeper.lease.fencing))
