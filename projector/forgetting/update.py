"""Apply one batch: removals first, then additions, then the repair. No argument changes.

This order makes the result independent of the order of the requests. [Suppose a leaving and a joining node share a
column. The other way round its weight would stay, and the new node would inherit what the old one taught.]
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

#: Seconds between two progress callbacks of a repair.
_REPORT_S = 0.2


class NotFinite(ArithmeticError):
    """The batch leads to weights, coefficients or predictions that are not finite numbers; nothing was changed."""


@dataclass(frozen=True, eq=False)
class HeldModel:
    """One version of a model, with everything needed to update it."""

    state: ModelState
    features: InputRows
    #: None if labels are not an input of the model.
    labels: InputRows | None
    live_graph: LiveGraph
    #: lambda.
    regularization: float
    training_rows: TrainingRows
    #: Feature columns whose rows of W are watched.
    injected: Sequence[InjectedColumn] = ()
    #: From this version or an earlier one, if any.
    preconditioner: Preconditioner | None = None
    #: Whether `state` comes from an unfinished repair, so that its coefficients must be taken over too.
    is_ahead: bool = False

    def objective(self) -> Objective:
        """Return F^u, the objective of the live graph."""
        return self.live_graph.objective(self.regularization)

    def certificate(self) -> Certificate | None:
        """Return the certificate of the weights; None for a loss without one."""
        if not certifiable(self.live_graph.loss, self.regularization):
            return None
        objective = self.objective()
        return certify(objective, objective.at(stacked(self.state)))


@dataclass(frozen=True)
class RepairPlan:
    """Settings for repairing a batch."""

    #: Seconds after which the repair pauses, to be continued later.
    budget_s: float = math.inf
    #: Bytes that a factor of the Hessian may use; None if unknown.
    free: int | None = None
    progress: Callable[[RepairProgress], None] | None = None
    #: Seconds that a preconditioner may outlive the first deletion it predates.
    factor_age_s: float = FACTOR_AGE_S
    #: Relative bound on the distance to retraining at which the repair counts as converged.
    tolerance: float = TOLERANCE


@dataclass(frozen=True, eq=False)
class Updated:
    """A batch computed next to the model it started from, with its figures."""

    #: Removed nodes, (m,), nodes whose features were removed, (l,), and removed edges, (k, 2).
    nodes: NDArray[np.int64]
    feature_rows: NDArray[np.int64]
    edges: NDArray[np.int64]
    #: Its figures belong to the final weights, repaired if `outcome` says so.
    projection: Projection
    outcome: RepairOutcome
    live_graph: LiveGraph
    training_rows: TrainingRows
    #: The repair, finished or not; None if none was requested.
    repair: RepairRun | None
    #: Logits of every node, (n, C), if known.
    logits: Tensor | None
    #: Time spent in the repair (seconds).
    repair_s: float
    #: The rows of each input that joined, features first. Their coefficients hold if `outcome` has none.
    joined: Sequence[JoinedRows]

    @property
    def state(self) -> ModelState:
        """The new model state."""
        return self.projection.state


def update(
    model: HeldModel, removals: Sequence[Removal], repair: RepairPlan | None, joining: Joining | None = None
) -> Updated:
    """Apply all `removals` together, then add `joining`. None for `repair` leaves the weights projected.

    Raises NotFinite if the projection is not made of finite numbers.
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
        live_graph = live_graph.joined(joining)
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
    """Return `projection` with the training norms of the removed labels, before and on the `remaining` graph."""
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
    """Raise NotFinite unless weights and coefficients are finite numbers."""
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
    """Return the outcome for `state` as it is; `logits` (n, C) are its own."""
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
