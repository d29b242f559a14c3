"""Answers from the published version: predictions under a lease, look-ups for deletions from the version read last."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np

from projector.forgetting.canaries import Canaries
from service.boottime import boottime
from service.errors import Unavailable
from service.publication.facts import Facts
from service.publication.mapped import View

P = ParamSpec("P")
T = TypeVar("T")

_LAPSED = "it was not learned in time which version of the model is the committed one"


@dataclass(frozen=True, slots=True)
class Prediction:
    """The class probabilities of one node, by one model version."""

    node: str
    #: The name of the most probable class; of equally probable ones, the first.
    label: str
    #: Class name -> probability, in the order of the model's classes; rounded where that was asked for.
    probabilities: dict[str, float]
    model_version: int


class Reader:
    """Answers from one view, which is replaced by one assignment.

    Predictions, the version and its facts need the lease, and raise Unavailable once it has run out. Look-ups for
    deletions use the view that was read last; the unlearner detects later changes. Every question raises Unavailable
    while there is no view. View and lease are checked after the answer is computed, because files without a lease are
    overwritten, and a process may be stopped at any point. An answer is computed again if its view was replaced
    meanwhile.
    """

    def __init__(self) -> None:
        self._view: View | None = None
        self._until = -math.inf
        self._reason = "the model's publication has not been read yet"

    @property
    def view(self) -> View | None:
        """What it answers from, whether its lease holds or not; for whoever replaces it."""
        return self._view

    def serve(self, view: View) -> None:
        """Answer from `view`. The lease goes on: it says that the pointer named what was served before, or this."""
        self._view = view

    def extend(self, until: float) -> None:
        """The version served is the committed one, or no other is `applied`, before `until`, by `boottime()`."""
        self._until = until
        self._reason = _LAPSED

    def explain(self, reason: str) -> None:
        """Why the lease is not extended, for those who are refused once it has run out."""
        self._reason = reason

    @property
    def canaries(self) -> Canaries | None:
        """The model's canaries; None when it was trained without. Raises Unavailable."""
        return self._answer(self._is_there, _canaries)

    def row(self, node: str) -> int | None:
        """The row of a live node; None for an id that is unknown or no longer live. Raises Unavailable."""
        return self._answer(self._is_there, View.find, node)

    def knows(self, node: str) -> bool:
        """Whether the id belongs to a live node. Raises Unavailable."""
        return self.row(node) is not None

    def have_edges(self, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        """Whether each pair of ids is an edge between two live nodes, all by one version. Raises Unavailable.

        An edge that was deleted by itself goes with its erasure, shortly after `applied`.
        """
        return self._answer(self._is_there, _have_edges, pairs)

    def is_public(self, node: str) -> bool:
        """Whether the id belongs to a node declared public, which is never deleted. Raises Unavailable."""
        return self._answer(self._is_there, _is_public, node)

    @property
    def facts(self) -> Facts:
        """What model and version are. Raises Unavailable."""
        return self._answer(self._is_leased, _facts)

    def rows(self, nodes: Sequence[str]) -> tuple[int, list[int]]:
        """The version, and the rows of the live ones of `nodes`, in the order asked. Raises Unavailable."""
        return self._answer(self._is_leased, _rows, nodes)

    def predict_many(
        self, nodes: Sequence[str], decimals: int | None = None
    ) -> tuple[int, list[Prediction], list[str]]:
        """The version, its predictions in the order asked, and the ids that are unknown or no longer live.

        All predictions are of the one version returned. Their probabilities are rounded to `decimals`; labels are those
        of the exact ones. Raises Unavailable, and PublicationDamaged from when damage is met in a version.
        """
        return self._answer(self._is_leased, _predictions, nodes, decimals)

    def _is_leased(self, view: View) -> bool:
        return boottime() < self._until

    def _is_there(self, view: View) -> bool:
        """Whether the files that versions of the model share are intact: they lose their name before any overwrite."""
        return self._is_leased(view) or view.model.path.exists()

    def _answer(
        self,
        is_good: Callable[[View], bool],
        question: Callable[Concatenate[View, P], T],
        *asked: P.args,
        **named: P.kwargs,
    ) -> T:
        while (view := self._view) is not None:
            failure = None
            try:
                answer = question(view, *asked, **named)
            except Exception as error:  # noqa: BLE001 - overwritten files may hold anything
                failure = error
            if self._view is not view:
                continue
            if not is_good(view):
                break
            if failure is not None:
                raise failure
            return answer
        raise Unavailable(f"Predictions are suspended: {self._reason}.", "Try again in a moment.")


def _facts(view: View) -> Facts:
    return view.facts


def _canaries(view: View) -> Canaries | None:
    return view.model.canaries


def _is_public(view: View, node: str) -> bool:
    row = view.find(node)
    return row is not None and bool(view.model.public[row])


def _have_edges(view: View, pairs: Sequence[tuple[str, str]]) -> list[bool]:
    if not pairs:
        # So does every request for nodes ask.
        return []
    ends = [(view.find(first), view.find(second)) for first, second in pairs]
    known = [(first, second) for first, second in ends if first is not None and second is not None]
    found = iter(view.model.edges.contain(np.array(known, dtype=np.int64).reshape(-1, 2)).tolist())
    return [None not in pair and next(found) for pair in ends]


def _rows(view: View, nodes: Sequence[str]) -> tuple[int, list[int]]:
    return view.facts.served.version, [row for node in nodes if (row := view.find(node)) is not None]


def _predictions(view: View, nodes: Sequence[str], decimals: int | None) -> tuple[int, list[Prediction], list[str]]:
    # Also when no nodes are asked for: so asks the readiness check.
    view.probabilities.require_undamaged()
    found = [(node, _prediction(view, node, decimals)) for node in nodes]
    predictions = [prediction for _, prediction in found if prediction is not None]
    return view.facts.served.version, predictions, [node for node, prediction in found if prediction is None]


def _prediction(view: View, node: str, decimals: int | None) -> Prediction | None:
    row = view.find(node)
    if row is None:
        return None
    exact = view.probabilities.row(row)
    told: list[float] = (exact if decimals is None else exact.round(decimals)).tolist()
    classes = view.facts.model.classes
    return Prediction(
        node=node,
        label=classes[exact.argmax()],
        probabilities=dict(zip(classes, told, strict=True)),
        model_version=view.facts.served.version,
    )
