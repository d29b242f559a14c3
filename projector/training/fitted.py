"""From a graph to a fitted model in memory: scaled columns, weights, span coefficients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from projector.device import enough_memory
from projector.forgetting.coefficients import span_coefficients
from projector.forgetting.gram import Gram
from projector.forgetting.status import TOLERANCE
from projector.graph.graph import Graph
from projector.network.spec import LossKind, ModelSpec, SolverKind
from projector.solvers.newton import feature_divisor
from projector.training.fit import Trained, TrainingProgress, train, with_class_weights
from projector.training.pretrained import PretrainedWeights, starting_point, train_on
from projector.training.scaling import well_scaled
from projector.training.temperature import fitted_temperature


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trained model with the data needed for deletions."""

    #: The graph trained on: column j of its features is the given one times 2**exponents[j].
    graph: Graph
    #: As given, with class weights counted, except for the solver if training continued from pretrained weights.
    spec: ModelSpec
    #: (d,); None if nothing was rescaled.
    exponents: NDArray[np.int64] | None
    gram: Gram
    trained: Trained
    #: Span coefficients, (blocks, n, C) float64, with W_b = X^T beta_b.
    beta: Tensor
    #: Span coefficients of the label blocks, (label_hops, n, C).
    label_beta: Tensor
    #: The pretrained starting weights, (p, C); None if training started from 0.
    start: Tensor | None
    #: Temperature from squared-loss scores to probabilities; None for other losses, or without validation nodes.
    temperature: float | None = None

    @property
    def too_large(self) -> str | None:
        """A warning if the features are so large that rounding leaves no room to prove deletions; else None."""
        certificate = self.trained.certificate
        if self.spec.solver is not SolverKind.NEWTON or certificate is None or certificate.relative is None:
            return None
        # A deletion adds up to half as much again.
        if certificate.within(TOLERANCE / 2):
            return None
        divisor = feature_divisor(certificate.relative)
        return (
            f"Rounding limits the bound on the distance to the optimum to {certificate.relative:.1e}. Deletions would "
            f"not be recorded as retrained, which requires {TOLERANCE:.0e}. Divide all features by {divisor}, or raise "
            f"lambda to {divisor**2 * self.spec.regularization:.2g}, and train again."
        )


def fit_graph(
    graph: Graph,
    spec: ModelSpec,
    *,
    pretrained: PretrainedWeights | None = None,
    fixed: Sequence[int] = (),
    device: str = "cpu",
    progress: Callable[[TrainingProgress], None] | None = None,
) -> Fitted:
    """Rescale the features if their Gram matrix needs it, train, and compute span coefficients, on `device`.

    The columns `fixed` are never rescaled. With `pretrained` weights, for the features of `graph`, training starts
    there and goes to the optimum, regardless of the named solver.

    A specification with 0 hops uses no edges, so the graph loses them.

    Raises GraphError, TrainingError, DeviceError as `train` does, RankError if the Gram matrix cannot determine the
    rank of the features, and WeightsError if `pretrained` does not belong to this graph and specification.
    """
    spec = with_class_weights(spec, graph)
    everyone = np.ones(graph.nodes, dtype=np.bool_)
    with enough_memory(device, graph.nodes, graph.num_features):
        scaled = well_scaled(graph.features, everyone, fixed=fixed, device=device)
    graph = replace(graph if spec.uses_edges else graph.without_any_edges(), features=scaled.features)
    start = None
    if pretrained is None:
        trained = train(spec, graph, device=device, progress=progress)
    else:
        spec = replace(spec, solver=SolverKind.NEWTON)
        start = starting_point(pretrained, spec, graph, scaled.exponents, scaled.gram)
        trained = train_on(spec, graph, start, progress=progress)
    beta, *labels = span_coefficients(trained.representation, trained.dual)
    label_beta = labels[0] if labels else beta.new_zeros((0, graph.nodes, graph.num_classes))
    scored = spec.loss is LossKind.SQUARED and graph.values is None
    temperature = fitted_temperature(graph, trained.logits) if scored else None
    return Fitted(graph, spec, scaled.exponents, scaled.gram, trained, beta, label_beta, start, temperature)
