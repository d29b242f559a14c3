"""Requests drawn for one client: of all kinds, about nodes that are its own, and deletions of some that are shared."""

import random
from collections.abc import Callable, Collection, Sequence

import numpy as np

from tests.support.kills.mixed.bookkeeping import Asked, Content, Expected, Row, ordered

#: The first number of every row that joins, followed in the next column by one that is the row's own. Exact in float32.
MARKER = float(np.float32(0.731058597564697))
#: Every new id begins so.
PREFIX = "person-"


class Drawing:
    """Draws the requests of one client, from what the graph will be if all are completed."""

    def __init__(
        self, seen: Expected, own: Sequence[str], shared: Sequence[str], foreign: Collection[str], seed: int
    ) -> None:
        """`seen` follows this client's requests alone. Of `foreign` nodes it asks nothing, not even about an edge."""
        self._rng = random.Random(seed)
        self._seen = seen
        self._own = list(own)
        self._owned = set(own)
        self._shared = list(shared)
        self._foreign = frozenset(foreign)
        self._columns, self._classes = seen.columns, len(seen.classes)
        #: Everything sent so far.
        self.sent: list[Asked] = []
        #: Deleted, and seen to be deleted.
        self.left: list[str] = []
        self._drawn: list[tuple[Callable[[], Asked | None], int]] = [
            (self._deletion, 16),
            (self._features, 8),
            (self._label, 8),
            (self._edges, 8),
            (self._addition, 24),
            (self._correction, 18),
            (self._rejoin, 8),
            (self._again, 5),
            (self._link, 5),
        ]

    def __call__(self) -> list[Asked]:
        """Return the next requests, to be sent in this order."""
        kinds, weights = zip(*self._drawn, strict=True)
        [draw] = self._rng.choices(kinds, weights=weights)
        one = draw() or self._addition()
        found = [one]
        if one.kind == "addition" and self._rng.random() < 0.2:
            # Still queued, most likely.
            named = (*one.content, *(end for edge in one.edges for end in edge if end in self._own))
            found.append(Asked("node", nodes=(self._rng.choice(named),)))
        elif one.kind == "correction" and self._rng.random() < 0.2:
            found.append(Asked(self._rng.choice(("node", "features", "label")), nodes=one.nodes))
        for each in found:
            self._seen.apply(each)
            self.sent.append(each)
        return found

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self._seen.classes

    def owns(self, node: str) -> bool:
        """Whether a node is this client's own."""
        return node in self._owned

    def chance(self, share: float) -> bool:
        """Return true for a `share` of the calls."""
        return self._rng.random() < share

    def between(self, least: int, most: int) -> int:
        """Return a number in this range."""
        return self._rng.randint(least, most)

    def _live(self, most: int) -> list[str]:
        live = [node for node in self._own if node in self._seen.nodes]
        return self._rng.sample(live, min(len(live), self._rng.randint(1, most)))

    def _deletion(self) -> Asked | None:
        nodes = self._live(3)
        if self._shared and self._rng.random() < 0.3:
            nodes.append(self._rng.choice(self._shared))
        return Asked("node", nodes=tuple(nodes)) if nodes else None

    def _features(self) -> Asked | None:
        nodes = [node for node in self._live(2) if self._seen.nodes[node].features is not None]
        return Asked("features", nodes=tuple(nodes)) if nodes else None

    def _label(self) -> Asked | None:
        nodes = self._live(2)
        return Asked("label", nodes=tuple(nodes)) if nodes else None

    def _edges(self) -> Asked | None:
        near = {node: sorted(self._seen.neighbours[node] - self._foreign) for node in self._live(2)}
        edges = [ordered(node, self._rng.choice(others)) for node, others in near.items() if others]
        return Asked("edge", edges=tuple(dict.fromkeys(edges))) if edges else None

    def _addition(self) -> Asked:
        nodes = [f"{PREFIX}{self._rng.getrandbits(64):016x}" for _ in range(self._rng.randint(1, 3))]
        self._own += nodes
        self._owned.update(nodes)
        content = {node: Content(self.row(), self._a_label()) for node in nodes}
        return Asked("addition", edges=self._edges_of(nodes), content=content)

    def _rejoin(self) -> Asked | None:
        if not self.left:
            return None
        nodes = {*self._rng.sample(self.left, min(len(self.left), self._rng.randint(1, 2)))}
        content = {
            node: Content(self.row(), self._a_label(), rejoin=self._rng.random() < 0.9) for node in sorted(nodes)
        }
        return Asked("addition", edges=self._edges_of(sorted(nodes)), content=content)

    def _link(self) -> Asked | None:
        """Edges alone, among them some that are deleted and some that are there."""
        edges = self._edges_of(self._live(2))
        earlier = [edge for one in self.sent[-20:] if one.kind == "edge" for edge in one.edges]
        if earlier and self._rng.random() < 0.5:
            edges = (self._rng.choice(earlier),)
        return Asked("addition", edges=edges) if edges else None

    def _correction(self) -> Asked | None:
        nodes = self._live(2)
        content = {}
        for node in nodes:
            features = self.row() if self._rng.random() < 0.7 else None
            label = self._rng.randrange(self._classes) if features is None or self._rng.random() < 0.4 else None
            content[node] = Content(features, label)
        return Asked("correction", nodes=tuple(nodes), content=content) if nodes else None

    def _again(self) -> Asked | None:
        return self._rng.choice(self.sent[-30:]) if self.sent else None

    def _edges_of(self, nodes: Sequence[str]) -> tuple[tuple[str, str], ...]:
        known = [node for node in (*self._own, *self._shared) if node in self._seen.nodes]
        found = []
        for node in nodes:
            for _ in range(self._rng.randint(0, 2)):
                other = self._rng.choice([*known, *nodes])
                if other != node:
                    found.append(ordered(node, other))
        return tuple(dict.fromkeys(found))

    def _a_label(self) -> int | None:
        return self._rng.randrange(self._classes) if self._rng.random() < 0.7 else None

    def row(self) -> Row:
        """Return a row with a number of its own after the marker."""
        first = self._rng.randrange(self._columns - 1)
        row = {first: MARKER, first + 1: _float32(self._rng.uniform(0.2, 1.0))}
        for _ in range(4):
            row.setdefault(self._rng.randrange(self._columns), _float32(self._rng.uniform(-1.0, 1.0)))
        return dict(sorted(row.items()))


def _float32(value: float) -> float:
    return float(np.float32(value))
