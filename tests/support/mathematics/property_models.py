"""A small model in memory, from which the code under test forgets nodes as the service does."""

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from projector.forgetting.batch import InputRows, ModelState, Projection, Removal, project_batch
from projector.forgetting.coefficients import span_coefficients
from projector.forgetting.gram import factorise
from projector.forgetting.live_graph import LiveGraph
from projector.forgetting.preconditioner import Preconditioner
from projector.forgetting.projection import SpanState
from projector.forgetting.repair import RepairOutcome, RepairRun
from projector.forgetting.status import TOLERANCE
from projector.forgetting.training_rows import TrainingRows
from projector.graph.features import FeatureMatrix
from projector.graph.graph import NO_LABEL, Features
from projector.network.blocks import side_by_side
from projector.network.inputs import inputs_of
from projector.network.losses import loss_of
from projector.network.propagation import Propagator
from projector.network.spec import LossKind, ModelSpec
from projector.solvers.kernel import takes_kernel
from projector.solvers.normal_equations import takes_normal_equations
from projector.solvers.objective import Objective
from projector.solvers.preconditioners import ClassBlocks, HessianFactor


class SmallModel:
    """The graph of the remaining nodes; `begin` sets `state` and `features`."""

    state: ModelState
    features: InputRows

    def __init__(
        self,
        features: Features,
        adjacency: NDArray[np.float64],
        labels: NDArray[np.int64],
        training: NDArray[np.bool_],
        spec: ModelSpec,
        classes: int,
        *,
        dense: bool = False,
    ) -> None:
        """With `dense`, repairs take their products with H itself, in single precision, as on large graphs."""
        n = len(labels)
        self.spec, self.classes = spec, classes
        self.live = np.ones(n, dtype=np.bool_)
        self.stored = FeatureMatrix(features)
        propagator = Propagator.build(sp.csr_array(adjacency), spec.propagation, spec.self_loops)
        inputs = inputs_of(spec, self.stored, sp.csr_array((n, classes)), propagator)
        squared = spec.loss is LossKind.SQUARED
        shape = int(training.sum()), len(spec.block_hops) * features.shape[1]
        equations = squared and takes_normal_equations(*shape)
        self.graph = LiveGraph(
            inputs, propagator, loss_of(spec.loss), np.where(training, labels, NO_LABEL), dense or equations, False,
            classes=classes, keeps_equations=equations, keeps_kernel=squared and takes_kernel(*shape),
        )  # fmt: skip
        self.rows = TrainingRows(self.graph)

    def objective(self) -> Objective:
        """F^u."""
        return self.graph.objective(self.spec.regularization)

    def begin(self, W: Tensor, dual: Tensor) -> None:
        """Set weights W (p, C) = H^T U from their dual variable U (n_train, C)."""
        representation = self.objective().representation
        beta = span_coefficients(representation, dual)[0]
        columns, gram = side_by_side(representation.split(W)[0]), factorise(self.stored, self.live)
        B = self.stored.transposed_matmul(side_by_side(beta))
        span = SpanState(columns, B, torch.zeros_like(columns), gram, self.live)
        self.state = ModelState(0, span, None, self.live, self.classes)
        self.features = InputRows(self.stored, beta)

    def project(self, nodes: NDArray[np.int64]) -> Projection:
        """Remove `nodes` (m,) from the graph and project the weights."""
        projection = project_batch(self.state, self.features, None, [Removal(nodes=nodes)])
        self.graph = self.graph.without(nodes, np.empty((0, 2), dtype=np.int64), np.empty(0, dtype=np.int64))
        self.rows = self.rows.on(self.graph)
        self.state, self.live = projection.state, projection.state.live
        self.features.beta[:, torch.from_numpy(nodes)] = 0.0
        return projection

    def repair(
        self, inverse: ClassBlocks | HessianFactor | None = None, *, tolerance: float = TOLERANCE
    ) -> RepairOutcome:
        """Repair the weights to those of retraining; `inverse` may be from before the last projection."""
        given = None if inverse is None else Preconditioner(inverse).outdated(60.0)
        repair = RepairRun(self.state, self.objective(), self.rows, given, tolerance=tolerance)
        repair.advance()
        self.state, outcome = repair.repaired()
        assert outcome.coefficients is not None
        self.features = InputRows(self.features.rows, outcome.coefficients[0])
        return outcome
