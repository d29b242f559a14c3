"""Training: compute the weights of a specification on a graph, and their dual variable."""

import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace

import numpy as np
import torch
from torch import Tensor

from projector.device import enough_memory
from projector.errors import TrainingError
from projector.forgetting.certificate import Certificate, certifiable, certify
from projector.graph.features import FeatureMatrix
from projector.graph.graph import Features, Graph, one_hot, validate
from projector.network.diffusion import Diffusion
from projector.network.inputs import inputs_of
from projector.network.losses import loss_of
from projector.network.product_costs import keeps_dense
from projector.network.propagation import Propagator
from projector.network.representation import DenseRepresentation, Representation
from projector.network.sizes import Sizes
from projector.network.spec import ClassWeight, LossKind, ModelSpec, SolverKind, check_spec
from projector.parallel.distributed import Distributed
from projector.parallel.workers import ALONE, Workers, together
from projector.solvers.descent import descend
from projector.solvers.newton import minimise
from projector.solvers.objective import Objective, Point
from projector.training.diffusion_learning import learn_diffusion


@dataclass(frozen=True)
class TrainingProgress:
    """One Newton step or epoch, for a progress bar."""

    #: 0 before the first.
    iteration: int
    #: Total number of epochs; None for `newton`, which stops at its tolerance.
    iterations: int | None
    #: The training objective.
    objective: float
    #: |grad|_F / lambda / |W|_F; infinite at W = 0.
    relative_gradient: float


@dataclass(frozen=True, eq=False)
class Trained:
    """Trained weights, with W = H^T U."""

    #: Weights of the feature blocks, (blocks, d, C) float64.
    weights: Tensor
    #: Weights of the label blocks, (label_hops, C, C) float64.
    label_weights: Tensor
    #: The learned parameters of adaptive diffusion; None without it.
    diffusion: Diffusion | None
    #: U, (n_train, C) float64; its rows are the training nodes, ascending.
    dual: Tensor
    #: H, for computations with U.
    representation: Representation
    #: Logits of every node, (n, C) float64.
    logits: Tensor
    #: |grad|_F / lambda / |W|_F, a bound on the relative distance to the optimum.
    relative_gradient: float
    #: Bound on the distance to the optimum, including rounding; None if the loss or lambda allows none.
    certificate: Certificate | None
    #: |W - H^T U|_F / |W|_F.
    identity_error: float
    #: Newton steps, or epochs.
    iterations: int
    seconds: float


def train(
    spec: ModelSpec,
    graph: Graph,
    *,
    device: torch.device | str = "cpu",
    progress: Callable[[TrainingProgress], None] | None = None,
    workers: Workers = ALONE,
) -> Trained:
    """Train from W = 0 on the training nodes of `graph`, in float64 on `device`.

    The same inputs give the same bits on the CPU. On a GPU they can differ by rounding, because it adds in any order.

    With several workers this is the first of them, and the others `follow_training`. Gradient descent uses one worker.

    Raises GraphError for a graph that cannot be trained on, TrainingError if a setting is out of range or the solver
    fails, DeviceError if the device is missing or too small.
    """
    validate(graph)
    check_spec(spec)
    check_targets(spec, graph)
    if workers.count > 1 and spec.solver is not SolverKind.NEWTON:
        raise TrainingError(f"sgd trains on one worker, not on {workers.count}.", "Use newton, or one worker.")
    with enough_memory(device, graph.nodes, graph.num_features):
        return _train(spec, graph, device, progress or _ignore, workers)


def check_targets(spec: ModelSpec, graph: Graph) -> None:
    """Raise TrainingError if `spec` does not support the real-valued targets of `graph`."""
    if graph.values is None:
        return
    if spec.loss is not LossKind.SQUARED:
        raise TrainingError(
            f"The labels are real numbers, which the loss {spec.loss} does not accept.",
            f"Use --loss {LossKind.SQUARED}, or give classes as integers.",
        )
    weighted = spec.class_weight is not ClassWeight.NONE or spec.class_weights
    if spec.label_hops or spec.diffusion or spec.mlp_width or weighted:
        raise TrainingError(
            "Label reuse, adaptive diffusion, an MLP and class weights need classes, and the labels are real numbers.",
            "Leave them out.",
        )


def with_class_weights(spec: ModelSpec, graph: Graph) -> ModelSpec:
    """Return `spec` with the class weights that its `class_weight` means on `graph`.

    Balanced weights have the mean 1 over the training nodes. A class without any has weight 1. Weights that `spec` has
    already are frozen. Raises TrainingError for another number of them.
    """
    if spec.class_weights and len(spec.class_weights) != graph.num_classes:
        raise TrainingError(
            f"{len(spec.class_weights)} class weights are given for {graph.num_classes} classes.", "Give one per class."
        )
    if spec.class_weights or spec.class_weight is ClassWeight.NONE:
        return spec
    counts = np.bincount(graph.labels[graph.train_mask], minlength=graph.num_classes)
    present = counts > 0
    weights = np.ones(graph.num_classes)
    weights[present] = counts.sum() / (present.sum() * counts[present])
    return replace(spec, class_weights=tuple(weights.tolist()))


def _train(
    spec: ModelSpec,
    graph: Graph,
    device: torch.device | str,
    progress: Callable[[TrainingProgress], None],
    workers: Workers,
) -> Trained:
    total = None if spec.solver is SolverKind.NEWTON else spec.epochs

    def report(iteration: int, point: Point) -> None:
        progress(TrainingProgress(iteration, total, point.value, point.relative_gradient))

    problem = Problem.of(spec, graph, device, progress, workers)
    start = torch.zeros((problem.representation.columns, graph.num_classes), dtype=torch.float64)
    start = start.to(problem.objective.labels.device)
    if spec.solver is SolverKind.NEWTON:
        return problem.solved(start, spec.tolerance, report)
    descent = descend(problem.objective, spec, start, report)
    return problem.trained(descent.point, descent.dual, spec.epochs)


class _Given:
    """A graph and its training set-up, on each worker."""

    def __init__(self, spec: ModelSpec, graph: Graph, device: torch.device | str, workers: Workers) -> None:
        self.workers, self.spec, self.graph = workers, with_class_weights(spec, graph), graph
        self.train_rows = np.flatnonzero(graph.train_mask).astype(np.int64)
        propagator = Propagator.build(graph.adjacency, spec.propagation, spec.self_loops, device=device)
        # The first worker alone learns an adaptive diffusion, of which every worker then holds all.
        self.propagator = propagator if spec.diffusion else propagator.divided(workers)
        self.keeps_dense = keeps_dense(spec, Sizes.of(graph))
        features = graph.features if self.keeps_dense else _in_float64(graph.features)
        self.features = FeatureMatrix(features, self.propagator.device)

    @together
    def representation(self, sigmas: list[float]) -> Representation:
        """Return H through its factors, with the learned sigmas of adaptive diffusion, if any."""
        graph = self.graph
        labels = one_hot(graph.labels, graph.train_mask, graph.num_classes)
        diffusion = Diffusion(*sigmas) if sigmas else None
        inputs = inputs_of(self.spec, self.features, labels, self.propagator, diffusion)
        return Representation(inputs, self.train_rows, self.workers)

    @together
    def objective(self, representation: Representation) -> Objective:
        """Return the training objective. Products with training rows use H itself if that is faster."""
        products = representation
        if self.keeps_dense:
            products = DenseRepresentation(representation.inputs, self.train_rows, workers=self.workers)
        given = self.graph.labels if self.graph.values is None else self.graph.values
        own = torch.from_numpy(given[self.train_rows[products.own]]).to(self.propagator.device)
        real_valued, weights = self.graph.values is not None, self.spec.class_weights
        loss = loss_of(self.spec.loss, real_valued=real_valued, class_weights=weights)
        return Objective(products, loss, own, self.spec.regularization)


def follow_training(spec: ModelSpec, graph: Graph, workers: Distributed, device: torch.device | str = "cpu") -> None:
    """Take part in training `spec` on `graph`, led by the first of `workers`."""
    workers.knows(_Given(spec, graph, device, workers))
    workers.follow()


@dataclass(frozen=True, eq=False)
class Problem:
    """The minimisation problem of training a specification on a graph."""

    objective: Objective
    #: H through its factors.
    representation: Representation
    #: The learned parameters of adaptive diffusion; None without it.
    diffusion: Diffusion | None
    #: `time.perf_counter()` at the start of its construction.
    began: float

    @classmethod
    def of(
        cls,
        spec: ModelSpec,
        graph: Graph,
        device: torch.device | str,
        progress: Callable[[TrainingProgress], None],
        workers: Workers = ALONE,
    ) -> "Problem":
        """Return the problem of `spec` on the training nodes of `graph`. One worker first learns adaptive diffusion."""
        began = time.perf_counter()
        given = _Given(spec, graph, device, workers)
        workers.knows(given)

        def report(iteration: int, point: Point) -> None:
            progress(TrainingProgress(iteration, None, point.value, point.relative_gradient))

        diffusion = learn_diffusion(spec, graph, given.features, given.propagator, report) if spec.diffusion else None
        representation = given.representation([] if diffusion is None else [*astuple(diffusion)])
        return cls(given.objective(representation), representation, diffusion, began)

    def solved(self, start: Tensor, tolerance: float, report: Callable[[int, Point], None]) -> Trained:
        """Run Newton's method from W = `start` (p, C). Raises TrainingError if it does not reach the optimum."""
        minimum = minimise(self.objective, start, tolerance, report)
        return self.trained(minimum.point, self.objective.dual(minimum.point), minimum.iterations)

    def trained(self, point: Point, dual: Tensor, iterations: int) -> Trained:
        """Return the weights at `point` with their dual variable U (n_train, C)."""
        weights, *label_weights = self.representation.split(point.W)
        classes = point.W.shape[1]
        bounded = certifiable(self.objective.loss, self.objective.regularization)
        return Trained(
            weights=weights,
            label_weights=label_weights[0] if label_weights else point.W.new_zeros((0, classes, classes)),
            diffusion=self.diffusion,
            dual=dual,
            representation=self.representation,
            logits=self.representation.logits_at_first(point.W),
            relative_gradient=point.relative_gradient,
            certificate=certify(self.objective, point) if bounded else None,
            identity_error=self.objective.identity_error(point.W, dual),
            iterations=iterations,
            seconds=time.perf_counter() - self.began,
        )


def _in_float64(features: Features) -> Features:
    """Training without H multiplies by the features many times: converting once costs less than each time."""
    return features.astype(np.float64) if isinstance(features, np.ndarray) else features


def _ignore(progress: TrainingProgress) -> None:
    """Do nothing: no progress is reported."""
