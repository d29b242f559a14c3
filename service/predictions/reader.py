"""Answer from the published version that is the head; look up deletions in the version read last."""

import asyncio
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from projector.forgetting.canaries import Canaries
from service.errors import Unavailable
from service.predictions.facts import Facts, ModelFacts, PublicationDamaged
from service.predictions.heads import Head, Heads
from service.predictions.layout import OtherPublicationFormat
from service.predictions.mapped import View, open_view

P = ParamSpec("P")
T = TypeVar("T")

_UNREAD = "the committed version is not known yet"
_UNPUBLISHED = "the unlearner has not published the model yet"
_LOADING = ("The model is loading.", "Try again in a moment; /readyz shows when it is ready.")
_ELSEWHERE = (
    "The model is served from another LETHE_HOME, or this home is a copy.",
    "Ask the other home. To serve the model from this one, stop the other for good, then run "
    "`./lethe recover --take-over`.",
)
_OLDER = "the published version is older than the committed one"


@dataclass(frozen=True, slots=True)
class Prediction:
    """The class probabilities of one node, by one model version."""

    node: str
    #: Name of the most probable class; the first of equally probable ones.
    label: str
    #: Class name -> probability, in the order of the model's classes; rounded on request.
    probabilities: dict[str, float]
    model_version: int


@dataclass(frozen=True, slots=True)
class Scores:
    """The predicted targets of one node by a regression."""

    node: str
    #: Target name -> value, in the order of the model's targets; rounded on request.
    scores: dict[str, float]
    model_version: int


@dataclass(frozen=True)
class Found:
    """The requested nodes and edges that one version contains."""

    #: Live nodes.
    live: frozenset[str]
    #: Those declared public, which are never deleted.
    public: frozenset[str]
    #: Whether each pair of ids is an edge between two live nodes. An edge deleted by itself disappears with its
    #: erasure, shortly after `applied`.
    edges: tuple[bool, ...]


class Reader:
    """Answers from one version, and switches to another once that is the head.

    It checks the head after computing an answer. If the head has changed, the answer is recomputed, because files of
    other versions are overwritten. If not, the version has been the head since it was opened, because a former head
    never returns. So the answer comes from a version that was the head after the request. Thread-safe.
    """

    def __init__(self, home: Path) -> None:
        """Refuses every answer until `admit`."""
        self._heads = Heads(home)
        self._view: View | None = None
        #: Held while a version is opened.
        self._opening = threading.Lock()
        #: The last unreadable folder, its fault and the remedy, so that not every request reads it again.
        self._unreadable: tuple[Path, str, str] | None = None
        #: The lowest version that may be answered from.
        self._lowest: int | None = None
        self._refusal = _suspension(_UNREAD)
        #: Whether to refuse all answers, because the model is served in another home.
        self._is_disowned = False

    def newest(self) -> Head | None:
        """Return the head if it may be answered from. Cheap; raises nothing."""
        try:
            return None if self._lowest is None else self._heads.newest()
        except OSError:
            return None

    def admit(self, committed: int) -> None:
        """Allow answers from this version on, which was the committed one when the process started.

        Entries may be old if LETHE_HOME was restored from a backup.
        """
        if self._lowest is None:
            self._lowest, self._is_disowned = committed, False

    def suspend(self, reason: str) -> None:
        """Refuse predictions, for this reason, until `admit` is called (again)."""
        self._lowest, self._refusal = None, _suspension(reason)

    def disown(self) -> None:
        """Refuse all answers until `admit`, because the model is served in another home.

        The unlearner there could not read the keys of requests accepted here.
        """
        self._lowest, self._refusal, self._is_disowned = None, _ELSEWHERE, True

    @property
    def facts(self) -> Facts:
        """Facts about model and version. Raises Unavailable."""
        return self.answer(lambda view: view.facts)

    def locate(self, nodes: Sequence[str]) -> tuple[Head, Facts, list[int | None]]:
        """Return the head, facts about it, and the row of each of `nodes`, None for one that is not live.

        Raises Unavailable.
        """
        return self.answer(lambda view: (view.head, view.facts, [view.find(node) for node in nodes]))

    def predict_many(
        self, nodes: Sequence[str], decimals: int | None = None
    ) -> tuple[int, list[Prediction | Scores], list[str]]:
        """Return the version, its predictions in the given order, and the ids that are unknown or no longer live.

        All predictions come from the returned version. Their probabilities are rounded to `decimals`; labels are those
        of the exact ones. Raises Unavailable, and PublicationDamaged once damage is found in a version.
        """
        return self.answer(_predictions, nodes, decimals)

    def answer(self, question: Callable[Concatenate[View, P], T], *asked: P.args, **named: P.kwargs) -> T:
        """Return the answer to a question from the head, and repeat it while the head changes.

        Raises Unavailable, and what `question` raises.
        """
        view = self._view or self._current()
        while True:
            failure = None
            try:
                answer = question(view, *asked, **named)
            except Exception as error:  # noqa: BLE001 - overwritten files may hold anything
                failure = error
            before, view = view, self._current()
            if view is not before:
                continue
            if failure is not None:
                raise failure
            return answer

    def look_up(self, nodes: Collection[str], edges: Sequence[tuple[str, str]] = ()) -> Found | None:
        """Look up `nodes` and `edges` in the head or, if it cannot be read, in the version read last.

        None if nothing has been read yet. The unlearner detects later changes. Raises Unavailable if the model is
        served in another home.
        """
        return self._answer_from_last(_found, nodes, edges)

    def live(self, nodes: Sequence[str]) -> frozenset[str]:
        """Return those `nodes` that are live, in the same version. Raises Unavailable if nothing has been read yet."""
        found = self.look_up(nodes)
        if found is None:
            raise Unavailable(*_LOADING)
        return found.live

    def canaries(self) -> Canaries | None:
        """Return the canaries of the model of the same version; None if it has none. Raises Unavailable."""
        found = self._answer_from_last(lambda view: (view.model.canaries,))
        if found is None:
            raise Unavailable(*_LOADING)
        return found[0]

    def _answer_from_last(
        self, question: Callable[Concatenate[View, P], T], *asked: P.args, **named: P.kwargs
    ) -> T | None:
        try:
            return self.answer(question, *asked, **named)
        except (Unavailable, OSError):
            if self._is_disowned:
                raise
            view = self._view
        if view is None:
            return None
        answer = None
        try:
            answer = question(view, *asked, **named)
        except Exception:  # overwritten files may hold anything
            if view.model.path.exists():
                raise
        # A model's files lose their name before they are overwritten.
        return answer if view.model.path.exists() else None

    def _newest(self) -> Head | None:
        """Return the head; None if it is lower than the version of earlier answers. Raises Unavailable."""
        view = self._view
        try:
            return self._heads.newest(None if view is None else view.head)
        except OSError as error:
            raise _suspended(str(error)) from None

    def _current(self) -> View:
        """Return the head's version, opening it if it changed. Raises Unavailable."""
        if self._lowest is None:
            raise Unavailable(*self._refusal)
        head, view = self._newest(), self._view
        if view is None or head != view.head:
            with self._opening:
                view = self._open()
        if view.facts.served.version < self._lowest:
            raise _suspended(_OLDER)
        return view

    def _open(self) -> View:
        while True:
            head, before = self._newest(), self._view
            if head is None:
                raise _suspended(_UNPUBLISHED)
            if before is not None and head == before.head:
                return before
            try:
                path = self._heads.folder(head)
                if self._unreadable is not None and self._unreadable[0] == path:
                    raise _suspended(*self._unreadable[1:])
                self._view = open_view(head, path, before)
            except FileNotFoundError:
                if self._newest() == head:
                    raise _suspended(_UNPUBLISHED) from None
            except (PublicationDamaged, OtherPublicationFormat) as error:
                if self._newest() != head:
                    # It may have been overwritten during the read, which only happens to outranked versions.
                    continue
                self._unreadable = (path, error.detail.rstrip("."), error.remedy)
                raise _suspended(*self._unreadable[1:]) from None
            except OSError as error:
                raise _suspended(str(error)) from None
            else:
                return self._view


def _suspended(reason: str, remedy: str = "Try again in a moment.") -> Unavailable:
    return Unavailable(*_suspension(reason, remedy))


def _suspension(reason: str, remedy: str = "Try again in a moment.") -> tuple[str, str]:
    return f"No prediction is possible: {reason}.", remedy


def _found(view: View, nodes: Collection[str], edges: Sequence[tuple[str, str]]) -> Found:
    rows = {node: row for node in nodes if (row := view.find(node)) is not None}
    public = frozenset(node for node, row in rows.items() if view.model.public[row])
    return Found(frozenset(rows), public, tuple(_have_edges(view, edges)))


def _have_edges(view: View, pairs: Sequence[tuple[str, str]]) -> list[bool]:
    if not pairs:
        # The case of every request for nodes.
        return []
    ends = [(view.find(first), view.find(second)) for first, second in pairs]
    known = [(first, second) for first, second in ends if first is not None and second is not None]
    found = iter(view.model.edges.contain(np.array(known, dtype=np.int64).reshape(-1, 2)).tolist())
    return [None not in pair and next(found) for pair in ends]


def _predictions(
    view: View, nodes: Sequence[str], decimals: int | None
) -> tuple[int, list[Prediction | Scores], list[str]]:
    # Even without nodes, as in the readiness check.
    view.probabilities.require_undamaged()
    found = [(node, _prediction(view, node, decimals)) for node in nodes]
    predictions = [prediction for _, prediction in found if prediction is not None]
    return view.facts.served.version, predictions, [node for node, prediction in found if prediction is None]


def _prediction(view: View, node: str, decimals: int | None) -> Prediction | Scores | None:
    row = view.find(node)
    if row is None:
        return None
    label, values = labelled(view.facts.model, view.probabilities.row(row), decimals)
    if view.facts.model.regression is not None:
        return Scores(node, values, view.facts.served.version)
    return Prediction(node=node, label=label, probabilities=values, model_version=view.facts.served.version)


def labelled(model: ModelFacts, exact: NDArray[np.float64], decimals: int | None) -> tuple[str, dict[str, float]]:
    """Return the class with the highest of the `exact` values (C,), and all of them by class, rounded."""
    values = (exact if decimals is None else exact.round(decimals)).tolist()
    return model.classes[exact.argmax()], dict(zip(model.classes, values, strict=True))


_Made = TypeVar("_Made")

#: Number of nodes from which a thread serves better than the event loop: below, the handover costs more than the work.
_MANY = 200


async def offload(count: int, work: Callable[[], _Made]) -> _Made:
    """Run `work` on `count` named nodes; with many nodes in a thread, so that others need not wait."""
    return work() if count < _MANY else await asyncio.to_thread(work)
