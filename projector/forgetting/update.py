"""One batch, whole: all that leaves leaves, then all that joins joins, then the repair. Nothing that is given changes.

In this order the result does not depend on the order in which things were asked for. [A column that a node has which
leaves, and one which joins: the other way round its weight would stay, and the new node would inherit what the old one
taught.]
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from projector.forgetting.batch import InjectedColumn, InputRows, ModelState, Projection, Removal, project_batch
from projector.forgetting.certificate import Certificate, certifiable, certify
from projector.forgetting.joining import JoinedRows, Joining, join_batch
from projector.forgetting.live_graph import LiveGraph
from projector.forgetting.optimum import stacked
from projector.forgetting.preconditioner import FACTOR_AGE_S, Preconditioner
from projector.forgetting.repair import RepairOutcome, RepairRun
from projector.forgetting.status import TOLERANCE, RepairProgress, RepairStatus
from projector.forgetting.training_rows import TrainingRows
from projector.solvers.objective import Objective

#: Seconds between two calls of a callback that follows a repair.
_REPORT_S = 0.2


class NotFinite(ArithmeticError):
    """A batch led to weights, coefficients or predictions that are not finite numbers; nothing was changed."""


@dataclass(frozen=True, eq=False)
class HeldModel:
    """One version of a model, with all that is needed to delete from it."""

    state: ModelState
    features: InputRows
    #: None for a model without labels among its inputs.
    labels: InputRows | None
    live_graph: LiveGraph
    #: lambda.
    regularization: float
    training_rows: TrainingRows
    #: Columns of the features whose rows of W are watched.
    injected: Sequence[InjectedColumn] = ()
    #: From this version or an earlier one; None where there is none.
    preconditioner: Preconditioner | None = None
    #: Whether `state` is what an unfinished repair has reached, so that its coefficients have to be taken over too.
    is_ahead: bool = False

    def objective(self) -> Objective:
        """F^u, the objective of the live graph."""
        return self.live_graph.objective(self.regularization)

    def certificate(self) -> Certificate | None:
        """How far the weights can be from those of retraining; None for a loss without certificate."""
        if not certifiable(self.live_graph.loss, self.regularization):
            return None
        objective = self.objective()
        return certify(objective, objective.at(stacked(self.state)))


@dataclass(frozen=True)
class RepairPlan:
    """How a batch is repaired."""

    #: Seconds after which the repair is left to be gone on with.
    budget_s: float = math.inf
    #: Bytes that a factor of the Hessian may take; None where that is not known.
    free: int | None = None
    progress: Callable[[RepairProgress], None] | None = None
    #: Seconds for which a preconditioner may be kept after the first deletion that it predates.
    factor_age_s: float = FACTOR_AGE_S
    #: The relative bound on the distance to retraining up to which the repair counts as converged.
    tolerance: float = TOLERANCE


@dataclass(frozen=True, eq=False)
class Updated:
    """A batch computed beside the model it was taken from, and what was measured."""

    #: Nodes that leave, (m,), nodes whose features leave, (l,), and edges that leave, (k, 2).
    nodes: NDArray[np.int64]
    feature_rows: NDArray[np.int64]
    edges: NDArray[np.int64]
    #: With the figures of the weights as they are in the end, repaired where `outcome` says so.
    projection: Projection
    outcome: RepairOutcome
    live_graph: LiveGraph
    training_rows: TrainingRows
    #: The repair, finished or not; None where there was to be none.
    repair: RepairRun | None
    #: Logits of every node, (n, C), where they are known.
    logits: Tensor | None
    #: How much of the time went into the repair (seconds).
    repair_s: float
    #: The rows of each input that joined, with coefficients that hold where `outcome` has none; features first.
    joined: Sequence[JoinedRows]

    @property
    def state(self) -> ModelState:
        """What the model becomes."""
        return self.projection.state


def update(
    model: HeldModel, removals: Sequence[Removal], repair: RepairPlan | None, joining: Joining | None = None
) -> Updated:
    """Takes all `removals` away at once, then lets `joining` join; None for `repair` leaves the weights projected.

    Raises NotFinite when the projection is not made of finite numbers.
    """
    projection = project_batch(model.state, model.features, model.labels, removals, model.injected)
    nodes, feature_rows, labels = (
        _all(parts) for parts in zip(*((one.nodes, one.features, one.labels) for one in removals), strict=True)
    )
    edges = np.concatenate([removal.edges for removal in removals])
    live_graph, rows = model.live_graph, model.training_rows
    if nodes.size or feature_rows.size or labels.size or edges.size:
        live_graph = live_graph.without(nodes, edges, feature_rows, labels)
        rows = rows.on(live_graph)
    projection = _with_training_norms(model, projection, removals, live_graph)
    joined: Sequence[JoinedRows] = ()
    if joining is not None:
        betas = [model.features.beta] if model.labels is None else [model.features.beta, model.labels.beta]
        live_graph = live_graph.joined(joining, model.state.classes)
        rows = rows.on(live_graph)
        projection, joined = join_batch(projection, joining, live_graph.inputs, betas)
    require_finite(projection.state)
    objective = live_graph.objective(model.regularization)
    began = time.monotonic()
    state, logits, run = projection.state, None, None
    if repair is None:
        logits = live_graph.logits(state)
        outcome = _unrepaired(objective, live_graph, state, logits)
    else:
        preconditioner = None if model.preconditioner is None else model.preconditioner.outdated(repair.factor_age_s)
        run = RepairRun(
            state, objective, rows, preconditioner,
            free=repair.free, tolerance=repair.tolerance,
        )  # fmt: skip
        if _finished(run, repair, began) or run.improved or model.is_ahead:
            state, outcome = run.repaired()
            projection = projection.with_weights_of(state, model.state)
        else:
            outcome = RepairOutcome(RepairStatus.PENDING, run.before, run.before)
    seconds = time.monotonic() - began
    return Updated(nodes, feature_rows, edges, projection, outcome, live_graph, rows, run, logits, seconds, joined)


def _with_training_norms(
    model: HeldModel, projection: Projection, removals: Sequence[Removal], remaining: LiveGraph
) -> Projection:
    """`projection` with the training norms of the labels that leave, before and on the `remaining` graph."""
    norms = list(projection.norms)
    for place, removal in enumerate(removals):
        if removal.labels.size:
            before, after = (
                graph.training_norm(stacked(state), model.regularization, removal.labels)
                for graph, state in ((model.live_graph, model.state), (remaining, projection.state))
            )
            norms[place] = replace(norms[place], training_before=before, training_after=after)
    return replace(projection, norms=tuple(norms))


def require_finite(state: ModelState) -> None:
    """Raises NotFinite unless weights and coefficients are finite numbers."""
    parts = [part for span in state.spans for part in (span.W, span.B, span.T)]
    if not all(bool(part.isfinite().all()) for part in parts):
        raise NotFinite("The batch leads to weights or coefficients that are not finite; it was not applied.")


def _finished(run: RepairRun, plan: RepairPlan, began: float) -> bool:
    until = began + plan.budget_s
    if plan.progress is None:
        return run.advance(until)
    while not run.advance(min(until, time.monotonic() + _REPORT_S)) and time.monotonic() < until:
        plan.progress(run.progress)
    return run.finished


def _unrepaired(objective: Objective, live_graph: LiveGraph, state: ModelState, logits: Tensor) -> RepairOutcome:
    """What holds of `state` as it is; `logits` (n, C) are its own."""
    if not certifiable(objective.loss, objective.regularization):
        return RepairOutcome(RepairStatus.NONE, None, None)
    if live_graph.workers.count > 1:
        point = objective.at(stacked(state))
    else:
        rows = torch.from_numpy(live_graph.training_rows).to(logits.device)
        point = objective.with_logits(stacked(state), logits[rows])
    certificate = certify(objective, point)
    return RepairOutcome(RepairStatus.NONE, certificate, certificate)


def _all(rows: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([*rows, np.empty(0, dtype=np.int64)])
