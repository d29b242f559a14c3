"""Projector as its paper prints it, and as its authors' code computes it.

Algorithm 1 ends in W_p = M_remain M_remain^+ W, the projection on the span of the remaining features, block by block.

* `OPTION_1`: M_remain = X_r^T X_r from the rows of V_remain. Section 3.1 defines V_remain as V_train without V_delete,
  although W lies in the span of *all* nodes' features (its Eq. 3): what test nodes alone support is then projected away
  as well. Followed as printed. Lethe projects on the span of all live nodes.
* `OPTION_2`: M_remain = M - X_D^T X_D with M = X^T X over all nodes, and M_remain^+ = M^+ + M^+ S M^+ with
  S = X_D^T [I - X_D X_D^T] X_D. That is not the Woodbury identity, whose middle is [I - X_D M^+ X_D^T]^-1, and what
  comes out is no projection. Followed as printed, to show by how much.
* `OFFICIAL`: the code. Option 1 in single precision, the pseudo-inverse by `torch.linalg.pinv` with its default cutoff,
  and the rows of all nodes that remain (the arXiv and Products scripts; those for Cora and Pubmed take training nodes
  alone, and predict from features that were never propagated: `pred` computes them and then multiplies X).
"""

from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
import torch
from torch import Tensor

from benchmarks.baselines.linear import LinearModel, fitted, remaining, without_nodes
from benchmarks.baselines.protocol import Array, Nodes
from projector import ModelSpec
from projector.graph.graph import Graph, feature_rows


class Printed(Enum):
    """Which form of Algorithm 1."""

    OPTION_1 = auto()
    OPTION_2 = auto()
    OFFICIAL = auto()


@dataclass(frozen=True, eq=False)
class PrintedModel(LinearModel):
    """Weights after some projections."""

    form: Printed

    def unlearn(self, nodes: Nodes) -> "PrintedModel":
        """One projection for all of `nodes` together."""
        live, graph = without_nodes(self.live, nodes), remaining(self.graph, nodes)
        if self.form is Printed.OPTION_2:
            every = np.flatnonzero(self.live)
            M_remain, M_inverse = option_2(
                feature_rows(self.graph.features, every), feature_rows(self.graph.features, nodes)
            )
        else:
            kept = np.flatnonzero(graph.train_mask if self.form is Printed.OPTION_1 else live)
            M_remain, M_inverse = option_1(feature_rows(graph.features, kept), single=self.form is Printed.OFFICIAL)
        W = torch.from_numpy(self.weights).to(M_remain.dtype)
        weights = (M_remain @ M_inverse @ W).to(torch.float64).numpy()
        return PrintedModel(graph, self.spec, live, weights, self.form)


@dataclass(frozen=True)
class PrintedProjector:
    """Forgets by Algorithm 1 of the paper, in one of its forms; training is the same as for all."""

    spec: ModelSpec
    form: Printed

    def fit(self, graph: Graph) -> PrintedModel:
        """As `Baseline.fit`."""
        found = fitted(graph, self.spec)
        return PrintedModel(found.graph, found.spec, found.live, found.weights, self.form)


def option_1(X: Array, *, single: bool) -> tuple[Tensor, Tensor]:
    """M_remain and M_remain^+, (d, d) each, of the rows X (m, d); in single precision as the authors' code does."""
    rows = torch.from_numpy(X).to(torch.float32 if single else torch.float64)
    M = rows.T @ rows
    # Their code knows nothing of the symmetry, which would also change what rounding does.
    return M, torch.linalg.pinv(M) if single else torch.linalg.pinv(M, hermitian=True)


def option_2(X: Array, X_D: Array) -> tuple[Tensor, Tensor]:
    """M_remain and what is printed as its pseudo-inverse, (d, d), of rows X (n, d), X_D (m, d) of them deleted."""
    rows, deleted = torch.from_numpy(X), torch.from_numpy(X_D)
    M = rows.T @ rows
    inverse = torch.linalg.pinv(M, hermitian=True)
    S = deleted.T @ (deleted - deleted @ deleted.T @ deleted)
    return M - deleted.T @ deleted, inverse + inverse @ S @ inverse
