"""Predictions of the committed version, read without locks while the next version is computed."""

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from projector.graph.edges import Edges
from service.boottime import boottime
from service.domain.snapshot import Snapshot
from service.errors import Unavailable

_LAPSED = "the lease on the model was not renewed in time, so that another process may have deleted since"


@dataclass(frozen=True, slots=True)
class Prediction:
    """The class probabilities of one node, by one model version."""

    node: str
    #: The name of the most probable class; of equally probable ones, the first.
    label: str
    #: Class name -> probability, in the order of the model's classes.
    probabilities: dict[str, float]
    model_version: int


@dataclass(frozen=True, slots=True, eq=False)
class _View:
    """What one read sees, whatever is published meanwhile."""

    version: int
    class_names: tuple[str, ...]
    probabilities: NDArray[np.float64]
    live: NDArray[np.bool_]
    live_nodes: int
    edges: Edges
    #: External ids of the nodes declared public, which are never deleted.
    public: frozenset[str]
    #: External id -> row; one dict for all views of a loaded model, and ids only ever leave it.
    index: dict[str, int]
    #: Why predictions are not answered at present, or None when they are.
    suspended: str | None = None


class Reader:
    """Answers predictions from one immutable view; writers replace the view by one assignment.

    Only the index of ids is changed in place. A read that still holds an older view no longer finds a node that a
    newer version forgot, and a read that holds the newer view before the id has left the index sees that its row
    is not live.
    """

    def __init__(
        self,
        node_ids: Sequence[str],
        class_names: Sequence[str],
        snapshot: Snapshot,
        *,
        public: frozenset[str] = frozenset(),
    ) -> None:
        """Answer from `snapshot`; see `load`."""
        self._writing = threading.Lock()
        self._until = math.inf
        self._ids, self._view = _load(node_ids, class_names, snapshot, public)

    @classmethod
    def empty(cls, reason: str) -> "Reader":
        """A reader that answers nothing, saying why, until a model is loaded and `extend` is called."""
        reader = cls((), (), Snapshot(0, np.empty((0, 0)), np.empty(0, dtype=np.bool_), Edges.none(0)))
        reader.suspend(reason)
        reader.extend(-math.inf)
        return reader

    @property
    def version(self) -> int:
        """The model version that predictions come from."""
        return self._view.version

    @property
    def live_nodes(self) -> int:
        """How many nodes the version predicts."""
        return self._view.live_nodes

    def row(self, node: str) -> int | None:
        """The row of a live node; None for an id that is unknown or no longer live.

        Answered also while predictions are suspended.

        Raises:
            Unavailable: no model is loaded yet, so that nothing can be said of any id.
        """
        return _find(self._loaded(), node)

    def knows(self, node: str) -> bool:
        """Whether the id belongs to a live node; like `row`."""
        return self.row(node) is not None

    def have_edges(self, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        """Whether each pair of ids is an edge between two live nodes, all by one version; answered like `row`."""
        view = self._loaded()
        if not pairs:
            return []
        ends = [(_find(view, first), _find(view, second)) for first, second in pairs]
        known = [(first, second) for first, second in ends if first is not None and second is not None]
        found = iter(view.edges.contain(np.array(known, dtype=np.int64).reshape(-1, 2)).tolist())
        return [None not in pair and next(found) for pair in ends]

    def is_public(self, node: str) -> bool:
        """Whether the id belongs to a node declared public, which is never deleted; answered like `row`."""
        view = self._loaded()
        return node in view.public and _find(view, node) is not None

    def predict(self, node: str) -> Prediction | None:
        """The node's prediction; None for an id that is unknown or no longer live.

        Raises:
            Unavailable: while suspended.
        """
        view = self._readable()
        row = _find(view, node)
        return None if row is None else _prediction(view, node, row)

    def predict_many(self, nodes: Sequence[str]) -> tuple[int, list[Prediction], list[str]]:
        """The version, its predictions in the order asked, and the ids that are not live nodes.

        All predictions are of the one version returned.

        Raises:
            Unavailable: while suspended.
        """
        view = self._readable()
        predictions: list[Prediction] = []
        missing: list[str] = []
        for node in nodes:
            row = _find(view, node)
            if row is None:
                missing.append(node)
            else:
                predictions.append(_prediction(view, node, row))
        return view.version, predictions, missing

    def load(
        self, node_ids: Sequence[str], class_names: Sequence[str], snapshot: Snapshot, *, public: frozenset[str]
    ) -> None:
        """Answer from a model that has just been loaded, whatever was answered from before.

        `public` are the ids of its nodes that are never deleted.

        Raises:
            ValueError: ids or classes do not fit the snapshot's shape, or two live nodes have the same id.
        """
        ids, view = _load(node_ids, class_names, snapshot, public)
        with self._writing:
            self._ids, self._view = ids, view

    def publish(self, snapshot: Snapshot) -> None:
        """Make `snapshot` what is read, and forget the ids of nodes it no longer holds; a suspension stays.

        Raises:
            ValueError: the snapshot has another shape, is of an older version, or revives a forgotten node.
        """
        with self._writing:
            before = self._view
            if snapshot.probabilities.shape != before.probabilities.shape:
                raise ValueError(f"shape {snapshot.probabilities.shape} instead of {before.probabilities.shape}")
            if snapshot.version < before.version:
                raise ValueError(f"version {snapshot.version} is older than the published {before.version}")
            if (snapshot.live & ~before.live).any():
                raise ValueError("a node that was forgotten cannot become live again")
            self._view = replace(
                before,
                version=snapshot.version,
                probabilities=_without_forgotten(snapshot),
                live=snapshot.live,
                live_nodes=int(snapshot.live.sum()),
                edges=snapshot.edges,
            )
            for row in np.flatnonzero(before.live & ~snapshot.live).tolist():
                del before.index[self._ids[row]]
                self._ids[row] = ""

    def extend(self, until: float) -> None:
        """No other process can change the model before `until`, by `boottime()`: predictions end then.

        A prediction that was asked for after another process reported a deletion `applied` is therefore never
        answered from before it: the end is looked at after the question was received, and the other process could not
        even begin before that end.
        """
        self._until = until

    def suspend(self, reason: str) -> None:
        """Refuse predictions from now on, saying why, until `resume`."""
        with self._writing:
            self._view = replace(self._view, suspended=reason)

    def resume(self) -> None:
        """Answer predictions again, from the version published last."""
        with self._writing:
            self._view = replace(self._view, suspended=None)

    def _loaded(self) -> _View:
        view = self._view
        if not view.class_names:
            raise _refusal(view)
        return view

    def _readable(self) -> _View:
        view = self._view
        if view.suspended is not None:
            raise _refusal(view)
        # After the view was read, so that what is answered from was the newest there was at this moment.
        if boottime() >= self._until:
            raise _suspended(_LAPSED)
        return view


def _refusal(view: _View) -> Unavailable:
    return _suspended(str(view.suspended))


def _suspended(reason: str) -> Unavailable:
    return Unavailable(f"Predictions are suspended: {reason}.", "Try again in a moment.")


def _find(view: _View, node: str) -> int | None:
    row = view.index.get(node)
    return row if row is not None and view.live[row] else None


def _prediction(view: _View, node: str, row: int) -> Prediction:
    values: list[float] = view.probabilities[row].tolist()
    return Prediction(
        node=node,
        label=view.class_names[values.index(max(values))],
        probabilities=dict(zip(view.class_names, values, strict=True)),
        model_version=view.version,
    )


def _load(
    node_ids: Sequence[str], class_names: Sequence[str], snapshot: Snapshot, public: frozenset[str]
) -> tuple[list[str], _View]:
    """The id of every live row ("" for the others), and the view of them."""
    if snapshot.probabilities.shape != (len(node_ids), len(class_names)):
        raise ValueError(
            f"{len(node_ids)} node ids and {len(class_names)} classes do not fit "
            f"probabilities of shape {snapshot.probabilities.shape}"
        )
    live = snapshot.live.tolist()
    ids = [node if alive else "" for node, alive in zip(node_ids, live, strict=True)]
    index = {node: row for row, node in enumerate(ids) if live[row]}
    if len(index) != sum(live):
        raise ValueError("two live nodes have the same id")
    return ids, _View(
        version=snapshot.version,
        class_names=tuple(class_names),
        probabilities=_without_forgotten(snapshot),
        live=snapshot.live,
        live_nodes=len(index),
        edges=snapshot.edges,
        public=public,
        index=index,
    )


def _without_forgotten(snapshot: Snapshot) -> NDArray[np.float64]:
    """The probabilities, (n, C), with zeros for nodes that are not live."""
    if snapshot.probabilities[~snapshot.live].any():
        # What a forgotten node was predicted must not outlive it, whoever computed the snapshot.
        return np.where(snapshot.live[:, None], snapshot.probabilities, 0.0)
    return snapshot.probabilities
