"""What joins a graph: rows that enter the spans of their inputs, after all that leaves has left.

Rows X_A (m, k) join with coefficients beta_A = -X_A T, so that their effective coefficients beta_A + X_A T are 0: with
B -= X_A^T X_A T and M += X_A^T X_A the weights W = B + M T stay what they are, until the repair learns what has joined.
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
    """What joins, by row, on a graph that all that leaves has left."""

    #: How many nodes are new: rows n, n + 1, … of the graph.
    new: int
    #: Rows that get features, ascending: live nodes without any, then all that are new, (m,).
    feature_rows: NDArray[np.int64]
    #: X_A, (m, d), in layout and dtype of the model's features, columns multiplied as they were.
    features: Features
    #: Rows that are trained on from now on and were not, ascending, (l,), and their classes, (l,).
    label_rows: NDArray[np.int64]
    labels: NDArray[np.int64]
    #: Edges that there are not yet, each once, (k, 2).
    edges: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class JoinedRows:
    """The rows of one input that have other coefficients since rows have joined: those, or all of its span."""

    rows: NDArray[np.int64]
    #: (blocks, m, C).
    beta: Tensor

    def into(self, beta: Tensor, nodes: int) -> Tensor:
        """`beta` (blocks, n, C), for as many `nodes`, with these rows among its own."""
        larger = torch.cat([beta, beta.new_zeros((beta.shape[0], nodes - beta.shape[1], beta.shape[2]))], dim=1)
        larger[:, torch.from_numpy(self.rows).to(beta.device)] = self.beta
        return larger


def join_batch(
    projection: Projection, joining: Joining, inputs: Inputs, betas: Sequence[Tensor]
) -> tuple[Projection, list[JoinedRows]]:
    """`projection`, of all that leaves, with what joins as well, and the rows of each input that have new coefficients.

    `inputs` are those of the graph with all that joins, `betas` their coefficients as last stored, (blocks, n, C). The
    weights stay as they are, and so do the figures of what has left: what joins may have the same columns.
    """
    before = projection.state
    live = np.concatenate([before.live, np.ones(joining.new, dtype=np.bool_)])
    joined = (joining.feature_rows, joining.label_rows)
    with threads_for(before.features.gram.M):
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
