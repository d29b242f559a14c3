"""Learn the sigmas of adaptive diffusion by gradient descent, stopped early by held-out nodes.

Outer steps follow the exact gradient of F(sh, sz) = min_W of the training objective (`diffusion_gradient`). Inner
solves find that W. F alone does not show where to stop: with more features than training nodes, it falls as sh grows
until neighbours count for nothing, and accuracy falls with it. (On Cora F is 0.153 with plain averages and 0.090
without neighbours, at test accuracies of 87 and 76 %.) So the loss of validation nodes judges the sigmas on the path.
Without validation nodes, one training node in five judges, drawn by the seed and not fitted while learning. The judges'
labels are never inputs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from projector.errors import TrainingError
from projector.graph.features import FeatureMatrix
from projector.graph.graph import Graph, one_hot
from projector.network.blocks import side_by_side
from projector.network.diffusion import Diffusion, DiffusionHops
from projector.network.inputs import Input, Inputs, label_input
from projector.network.losses import loss_of
from projector.network.product_costs import keeps_dense
from projector.network.propagation import Propagator
from projector.network.representation import DenseRepresentation, Representation
from projector.network.sizes import Sizes
from projector.network.spec import LossKind, ModelSpec
from projector.solvers.newton import minimise
from projector.solvers.objective import Objective, Point
from projector.training.diffusion_gradient import objective_derivatives

#: Starting exponents: sh^2 |h_i - h_j|^2 and sz^2 |z_i - z_j|^2 of a median edge before the first hop, among edges with
#: differing ends. Not 0, because steps multiply.
START = 0.1
#: Exponent of a median edge beyond which its ends do not affect each other, e^-20.
_LARGEST = 20.0
#: Without validation nodes, one in this many training nodes judges.
_JUDGES = 5
#: Number of groups over which the judges' losses are averaged. Their spread separates differences from noise.
_GROUPS = 20
#: An outer step multiplies the square of one sigma by exp(_STEP), and that of the other by at most as much.
_STEP = 0.5
_SHORTEST_STEP = 2.0**-6
_MAX_STEPS = 16
#: Learning ends once the judges' loss is this many standard errors above the smallest on the path.
_CERTAIN = 2.0
#: Relative gradient for inner problems, far below the length of a step.
_TOLERANCE = 1e-4


@dataclass(frozen=True, eq=False)
class _Problem:
    """The constants of one learning run."""

    spec: ModelSpec
    features: FeatureMatrix
    labels: Input | None
    y: Tensor
    #: Fitted rows, ascending, and judging rows.
    fitted: NDArray[np.int64]
    judges: NDArray[np.int64]
    #: Whether products use H itself.
    dense: bool
    report: Callable[[int, Point], None]


@dataclass(frozen=True, eq=False)
class _Solved:
    """The inner optimum at some sigmas."""

    operators: DiffusionHops
    representation: Representation
    point: Point
    judged: "_Judged"


@dataclass(frozen=True, eq=False)
class _Judged:
    """The small part of a step to keep; the rest is as large as the graph."""

    sigmas: Diffusion
    #: Mean loss of each group of judges, (groups,).
    losses: NDArray[np.float64]


def learn_diffusion(
    spec: ModelSpec,
    graph: Graph,
    features: FeatureMatrix,
    propagator: Propagator,
    report: Callable[[int, Point], None],
) -> Diffusion:
    """Return the sigmas for training `spec` on `graph` with the rows `features`; `report` gets every inner iteration.

    Deterministic by `spec.seed`. Raises TrainingError if a sigma diverges or is not finite.
    """
    fitted, judges = _split(graph, spec.seed)
    training = np.zeros(graph.nodes, dtype=np.bool_)
    training[fitted] = True
    Y = one_hot(graph.labels, training, graph.num_classes)
    y = torch.from_numpy(graph.labels).to(features.device)
    dense = keeps_dense(spec, Sizes.of(graph))
    problem = _Problem(spec, features, label_input(spec, Y, propagator), y, fitted, judges, dense, report)
    averages = DiffusionHops.build(
        features,
        Y,
        propagator.edges.adjacency,
        sigmas=Diffusion(0.0, 0.0),
        gamma=spec.gamma,
        block_hops=spec.block_hops,
        live=propagator.live,
    )
    return _descend(problem, averages, _units(averages))


def _descend(problem: _Problem, averages: DiffusionHops, units: NDArray[np.float64]) -> Diffusion:
    """Descend in the logarithms of a median edge's exponents, which keeps the sigmas positive."""
    logs, step = np.log([START, START]), _STEP
    solved = _solve(problem, averages.with_sigmas(_sigmas(logs, units)), None)
    path = [solved.judged]
    while len(path) <= _MAX_STEPS and np.exp(logs).max() <= _LARGEST and _excesses(path)[-1] <= _CERTAIN:
        gradient = _slopes(problem, solved) * np.exp(logs) * units
        largest = float(np.abs(gradient).max())
        following = solved
        while largest > 0.0 and step >= _SHORTEST_STEP and following.point.value >= solved.point.value:
            ahead = logs - step * gradient / largest
            following = _solve(problem, averages.with_sigmas(_sigmas(ahead, units)), solved.point.W)
            if following.point.value >= solved.point.value:
                step /= 2
        if following.point.value >= solved.point.value:
            break
        logs, solved = ahead, following
        path.append(solved.judged)
    # The one-standard-error rule of Breiman and others (1984): among the sigmas that the judges cannot separate, take
    # those closest to the start, and so to plain averages.
    return _checked(path[int(np.argmax(_excesses(path) <= 1.0))].sigmas, units)


def _excesses(path: Sequence[_Judged]) -> NDArray[np.float64]:
    """Return how many standard errors each loss is above the smallest on the path."""
    losses = np.array([judged.losses for judged in path])
    worse = losses - losses[np.argmin(losses.mean(axis=1))]
    errors = worse.std(axis=1) / math.sqrt(losses.shape[1])
    return np.asarray(worse.mean(axis=1) / np.maximum(errors, np.finfo(np.float64).tiny))


def _solve(problem: _Problem, operators: DiffusionHops, start: Tensor | None) -> _Solved:
    """Return the optimum under `operators`, from the weights `start` (p, C) or from 0."""
    spec, y, rows = problem.spec, problem.y, problem.fitted
    inputs = Inputs(Input(problem.features, operators), problem.labels)
    representation = Representation(inputs, rows)
    # Learning uses the smoothed form of the plain hinge, which lacks a useful gradient.
    loss = loss_of(LossKind.HINGE if spec.loss is LossKind.PLAIN_HINGE else spec.loss)
    products = DenseRepresentation(inputs, rows) if problem.dense else representation
    objective = Objective(products, loss, y[torch.from_numpy(rows)], spec.regularization)
    if start is None:
        start = torch.zeros((representation.columns, operators.labels.shape[1]), dtype=torch.float64, device=y.device)
    point = minimise(objective, start, _TOLERANCE, problem.report).point
    logits = representation.all_logits(point.W)
    groups = [torch.from_numpy(group).to(y.device) for group in np.array_split(problem.judges, _GROUPS) if group.size]
    losses = np.array([loss.value(logits[group], y[group]) / group.shape[0] for group in groups])
    _check_finite(operators, point.value, *losses)
    return _Solved(operators, representation, point, _Judged(operators.sigmas, losses))


def _slopes(problem: _Problem, solved: _Solved) -> NDArray[np.float64]:
    """Return dF/d(sh^2) and dF/d(sz^2), (2,)."""
    weighted = problem.features.matmul(side_by_side(solved.representation.split(solved.point.W)[0]))
    residual = solved.representation.scattered(solved.point.residual) / problem.fitted.size
    slopes = objective_derivatives(solved.operators, weighted, residual)
    _check_finite(solved.operators, *slopes)
    return np.array(slopes)


def _check_finite(operators: DiffusionHops, *numbers: float) -> None:
    """Raise TrainingError unless the `numbers` computed with `operators` are finite."""
    if not np.isfinite(numbers).all():
        sigmas = operators.sigmas
        raise TrainingError(
            "Learning adaptive diffusion led to numbers that are not finite, at sigma_h "
            f"{sigmas.sigma_h:.3g} and sigma_z {sigmas.sigma_z:.3g}.",
            "Scale the features to sizes near 1, or train without adaptive diffusion.",
        )


def _split(graph: Graph, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the fitted rows, ascending, and the judging rows, in an order independent of the nodes'."""
    random = np.random.default_rng(seed)
    training, validation = (np.flatnonzero(mask).astype(np.int64) for mask in (graph.train_mask, graph.val_mask))
    if validation.size:
        return training, random.permutation(validation)
    if training.size < 2:
        raise TrainingError(
            "Adaptive diffusion needs validation nodes, or at least 2 training nodes, one of which validates.",
            "Give more labelled nodes, or train without adaptive diffusion.",
        )
    shuffled = random.permutation(training)
    judges = max(1, training.size // _JUDGES)
    return np.sort(shuffled[judges:]), shuffled[:judges]


def _units(averages: DiffusionHops) -> NDArray[np.float64]:
    """Return the squared sigmas at which a median edge's exponents are 1, (2,); 1 if all distances are 0."""
    positive = [each[each > 0] for each in averages.distances[0]]
    medians = [float(each.median()) if each.numel() else 1.0 for each in positive]
    _check_finite(averages, *medians)
    return 1.0 / np.array(medians)


def _sigmas(logs: NDArray[np.float64], units: NDArray[np.float64]) -> Diffusion:
    sigma_h, sigma_z = np.sqrt(np.exp(logs) * units).tolist()
    return Diffusion(sigma_h=sigma_h, sigma_z=sigma_z)


def _checked(sigmas: Diffusion, units: NDArray[np.float64]) -> Diffusion:
    """Return `sigmas`. Raises TrainingError if they suppress the neighbours entirely."""
    squares = np.array([sigmas.sigma_h, sigmas.sigma_z]) ** 2
    if (squares / units).max() > _LARGEST:
        raise TrainingError(
            f"Adaptive diffusion diverged, to sigma_h {sigmas.sigma_h:.3g} and sigma_z {sigmas.sigma_z:.3g}: the nodes "
            "that judge it are predicted best when neighbours count for nothing.",
            "Train without adaptive diffusion, with fewer hops or with --combine concat.",
        )
    return sigmas
