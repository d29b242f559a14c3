"""Add nodes, features, labels and edges to a graph, after all removals: rows join the spans of their inputs.

Rows X_A (m, k) join with coefficients beta_A = -X_A T, so their effective coefficients beta_A + X_A T are 0. With B -=
X_A^T X_A T and M += X_A^T X_A the weights W = B + M T stay the same, until the repair learns from the new rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from projector.device import threads_for
from projector.forgetting.batch import Projection
from projector.forgetting.gram import FactorMethod
from projector.forgetting.projection import join
from projector.graph.graph import Features
from projector.network.blocks import by_block
from projector.network.inputs import Inputs


@dataclass(frozen=True, eq=False)
class Joining:
    """What joins the graph, by row, after all removals."""

    #: Number of new nodes: rows n, n + 1, … of the graph.
    new: int
    #: Rows that get features, ascending: live nodes without features, then all new nodes, (m,).
    feature_rows: NDArray[np.int64]
    #: X_A, (m, d), in the layout, dtype and column scales of the model's features.
    features: Features
    #: Rows that become training nodes, ascending, (l,). Then their classes, (l,), or real-valued targets, (l, C)
    #: float64.
    label_rows: NDArray[np.int64]
    labels: NDArray[np.int64] | NDArray[np.float64]
    #: New edges, each once, (k, 2), and their weights, (k,) float64; None if all are 1.
    edges: NDArray[np.int64]
    edge_weight: NDArray[np.float64] | None = None


@dataclass(frozen=True, eq=False)
class JoinedRows:
    """The rows of one input whose coefficients changed by joining: the new rows, or all of the span."""

    rows: NDArray[np.int64]
    #: (blocks, m, C).
    beta: Tensor

    def into(self, beta: Tensor, nodes: int) -> Tensor:
        """Return `beta` (blocks, n, C), extended to `nodes`, with these rows written into it."""
        larger = torch.cat([beta, beta.new_zeros((beta.shape[0], nodes - beta.shape[1], beta.shape[2]))], dim=1)
        larger[:, torch.from_numpy(self.rows).to(beta.device)] = self.beta
        return larger


def join_batch(
    projection: Projection, joining: Joining, inputs: Inputs, betas: Sequence[Tensor]
) -> tuple[Projection, list[JoinedRows]]:
    """Return `projection`, which holds all removals, with `joining` added, and each input's changed coefficients.

    `inputs` are those of the graph with everything that joins, `betas` their coefficients as last stored, (blocks, n,
    C). Weights and removal figures stay as they are: what joins may use the same columns.
    """
    before = projection.state
    live = np.concatenate([before.live, np.ones(joining.new, dtype=np.bool_)])
    joined = (joining.feature_rows, joining.label_rows)
    with threads_for(before.features.gram.stored):
        parts = zip(before.spans, inputs, betas, joined, strict=False)
        updates = [join(span, given.rows, beta, rows) for span, given, beta, rows in parts]
    features, *labels = updates
    leaves = projection.factor_method is not FactorMethod.NONE
    after = replace(
        projection,
        state=replace(before, features=features.state, labels=labels[0].state if labels else None, live=live),
        directions_gained=features.gained,
        coefficient_residual=max(projection.coefficient_residual, *(each.coefficient_residual for each in updates)),
        factor_method=projection.factor_method if leaves else features.factor_method,
        between_halves=True,
    )
    rows = [JoinedRows(each.rows, by_block(each.beta, before.classes)) for each in updates]
    return after, rows
