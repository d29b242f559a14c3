"""Find the parts of a newly trained graph that earlier requests deleted, and keep the store's record of tombstones."""

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
from service.domain.formats import plural
from service.domain.kinds import DELETIONS, Part
from service.domain.records import Tombstone
from service.errors import KeyMissing, StateMismatch
from service.requests.tombstones import TombstoneRepository
from service.unlearner.context import Context
from service.unlearner.lease_keeper import LeaseKeeper

#: Nodes or edges per lookup.
_PAGE = 20_000


@dataclass(frozen=True, eq=False)
class DeletedParts:
    """The parts of a graph that were deleted earlier, by row."""

    #: Nodes, (m,) int64.
    nodes: NDArray[np.int64]
    #: Present nodes whose features were deleted, (k,) int64.
    feature_rows: NDArray[np.int64]
    #: Edges between present nodes, (l, 2) int64.
    edges: NDArray[np.int64]
    #: Present nodes that are trained on although their labels were withdrawn, (r,) int64.
    labels: NDArray[np.int64]

    @classmethod
    def nothing(cls) -> "DeletedParts":
        """Return the parts of a graph without deletions."""
        none = np.empty(0, dtype=np.int64)
        return cls(none, none, none.reshape(0, 2), none)

    def and_also(self, other: "DeletedParts") -> "DeletedParts":
        """Return the union; both must be disjoint."""
        return DeletedParts(
            np.concatenate([self.nodes, other.nodes]),
            np.concatenate([self.feature_rows, other.feature_rows]),
            np.concatenate([self.edges, other.edges]),
            np.concatenate([self.labels, other.labels]),
        )

    def within(
        self, live: NDArray[np.bool_], featured: NDArray[np.bool_], trained: NDArray[np.bool_]
    ) -> "DeletedParts":
        """Return the parts that a version with these `live`, `featured` and `trained` nodes, each (n,), contains."""
        return DeletedParts(
            nodes=self.nodes[live[self.nodes]],
            feature_rows=self.feature_rows[(live & featured)[self.feature_rows]],
            edges=self.edges[np.all(live[self.edges], axis=1)],
            labels=self.labels[(live & trained)[self.labels]],
        )

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Number of nodes, of nodes with deleted features, of edges, and of nodes with withdrawn labels."""
        return self.nodes.size, self.feature_rows.size, len(self.edges), self.labels.size

    def __bool__(self) -> bool:
        return any(self.counts)

    def __str__(self) -> str:
        """Format the counts, such as "2 nodes and 1 edge"."""
        parts = ("node", "node whose features were deleted", "edge", "node whose label was withdrawn")
        counts = zip(parts, self.counts, strict=True)
        return " and ".join(f"{count} {_plural(what, count)}" for what, count in counts if count)

    def removals(self) -> list[Removal]:
        """Return one removal per kind, to be carried out together."""
        removals = []
        if self.nodes.size:
            removals.append(Removal(nodes=self.nodes))
        if self.feature_rows.size:
            removals.append(Removal(features=self.feature_rows))
        if self.edges.size:
            removals.append(Removal(edges=self.edges))
        if self.labels.size:
            removals.append(Removal(labels=self.labels))
        return removals


async def find_deleted_parts(
    engine: Engine,
    keyring: Keyring,
    model: str,
    graph: Graph,
    own: Collection[Tombstone] = (),
    work: Work | None = None,
) -> DeletedParts:
    """Find the parts of `graph` that requests to `model` deleted, except rows that are already erased.

    `own` are tombstones that the database does not have yet. Each part is a step of `work`. Raises KeyMissing if the
    key of a tombstone is missing, and Unavailable.
    """
    async with transaction(engine) as connection:
        tombstones = TombstoneRepository(connection)
        keyring.check(await tombstones.key_fingerprints())
        counts = {part: await tombstones.count(model, part) for part in Part}
    also, work = frozenset(one.hash for one in own), work or Work()

    async def find(part: Part, pages: Iterable[NDArray[np.int64]], amount: int) -> NDArray[np.int64]:
        """Return the rows in `pages`, (k,) or (k, 2) for edges, whose part was deleted, under any key."""
        found = [np.empty((0, 2) if part is Part.EDGES else 0, dtype=np.int64)]
        # Hashing every edge of a large graph takes minutes and is useless if no edge was deleted.
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
    trained = np.flatnonzero(present & graph.train_mask)
    labels = await find(Part.LABELS, _pages(trained), trained.size)
    return DeletedParts(nodes, features, await find(Part.EDGES, _edges(graph, present), graph.edges), labels)


def _pages(rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    return (rows[start : start + _PAGE] for start in range(0, len(rows), _PAGE))


def _edges(graph: Graph, present: NDArray[np.bool_]) -> Iterator[NDArray[np.int64]]:
    """Yield every edge between nodes of the mask `present` (n,) once, (k, 2) at a time."""
    adjacency = graph.adjacency
    for first, end in parts_of_rows(adjacency.indptr, 2 * _PAGE):
        columns = adjacency.indices[adjacency.indptr[first] : adjacency.indptr[end]]
        rows = np.repeat(np.arange(first, end), np.diff(adjacency.indptr[first : end + 1]))
        once = (rows < columns) & present[rows] & present[columns]
        yield np.column_stack([rows[once], columns[once]])


def _plural(what: str, count: int) -> str:
    first, space, rest = what.partition(" ")
    return what if count == 1 else f"{first}s{space}{rest}"


#: An operator passes this name to accept the loss of some of the record.
TOMBSTONES = "tombstones"
_BY_CODE = {code: kind for kind in DELETIONS if (code := kind.rules.tombstone_code) is not None}


def for_store(tombstones: Iterable[Tombstone], keyring: Keyring) -> list[RecordedTombstone]:
    """Convert to the store's form, without the request; `keyring` holds the keys that made them."""
    keys = {number: fingerprint[:KEY_BYTES] for number, fingerprint in keyring.fingerprints().items()}
    codes = {kind: code for code, kind in _BY_CODE.items()}
    return [RecordedTombstone(one.hash, keys[one.key_number], codes[one.kind], one.is_void) for one in tombstones]


async def only_in_store(engine: Engine, kept: TombstoneRecord, keyring: Keyring) -> list[Tombstone]:
    """Return the tombstones in the store's record that the database lacks. Raises as `missing_tombstones`."""
    return await missing_tombstones(engine, kept.tombstones, keyring, or_void=True)


async def missing_tombstones(
    engine: Engine, kept: Collection[RecordedTombstone], keyring: Keyring, *, or_void: bool
) -> list[Tombstone]:
    """Return those of `kept` that the database lacks; with `or_void`, void ones in it count as present.

    Raises Unavailable. Raises KeyMissing if the key of a tombstone is missing, because its target cannot be identified
    then.
    """
    numbers = {fingerprint[:KEY_BYTES]: number for number, fingerprint in keyring.fingerprints().items()}
    of_others = sum(one.key not in numbers for one in kept)
    if of_others:
        raise KeyMissing(
            f"{of_others} of the model's tombstones were made with a key that is not in the key folder.",
            "Restore the key folder that belongs to the model; until then, deleted and unknown nodes look the "
            "same. If it is lost for good, move the files `tombstones-*` out of the model's folder. A newly "
            "trained model may then contain what they name.",
        )
    async with transaction(engine) as connection:
        known = await TombstoneRepository(connection).find({one.hash for one in kept}, with_void=or_void)
    unknown = [one for one in kept if one.hash not in known]
    return [Tombstone(_BY_CODE[one.code], one.hash, numbers[one.key], None) for one in unknown]


def unreadable(kept: TombstoneRecord) -> StoreDamaged:
    """Build the error for unreadable tombstones that may have no other copy."""
    return StoreDamaged(
        f"{', '.join(map(str, kept.damaged))} is damaged. It records deletions that the database, restored from "
        "an older backup, does not have.",
        "Replace it with the files `tombstones-*` from the newest backup of the model; the database adds what "
        f"they lack. Without a backup, `./lethe recover --accept-lost {TOMBSTONES}` continues with what can be "
        "read. Other deletions that this database does not have are forgotten: such nodes look unknown, and a "
        "newly trained model may contain them.",
    )


async def reconcile(context: Context, store: Store, keeper: LeaseKeeper) -> None:
    """Bring the store's record in line with the database, which repairs damage.

    Raises StateMismatch if the record holds tombstones that the database lacks, KeyMissing, Unavailable and OSError.
    """
    kept = await context.run(store.tombstones)
    if own := await only_in_store(context.engine, kept, context.keyring):
        raise StateMismatch(
            f"The model has {plural(len(own), 'tombstone')} that the database does not have: the database was restored "
            "from an older backup.",
            f"Nothing was removed. Restore store and database from the same backup. {StateMismatch.RECOVER}",
        )
    async with transaction(context.engine) as connection:
        repository = TombstoneRepository(connection)
        context.keyring.check(await repository.key_fingerprints())
        if kept.is_tidy and await repository.count(context.model, with_void=False) == len(kept.hashes):
            return
        recorded = await repository.of_model(context.model)
    if kept.damaged:
        structlog.get_logger(__name__).warning("tombstones.damaged", model=context.model, readable=len(kept.tombstones))
    durable_changes = for_store(recorded, context.keyring)
    await context.run(partial(store.replace_tombstones, durable_changes, fencing=keeper.lease.fencing))
