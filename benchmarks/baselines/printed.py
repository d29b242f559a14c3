"""Projector as its paper prints it, and as its authors' code computes it.

Algorithm 1 ends in W_p = M_remain M_remain^+ W, the projection on the span of the remaining features, block by block.

* `OPTION_1`: M_remain = X_r^T X_r from the rows of V_remain. Section 3.1 defines V_remain as V_train without V_delete,
  although W lies in the span of *all* nodes' features (its Eq. 3). Directions that only test nodes support are then
  projected away as well. Followed as printed. Lethe projects on the span of all live nodes.
* `OPTION_2`: M_remain = M - X_D^T X_D with M = X^T X over all nodes, and M_remain^+ = M^+ + M^+ S M^+ with S = X_D^T [I
  - X_D X_D^T] X_D. That is not the Woodbury identity, whose middle is [I - X_D M^+ X_D^T]^-1, and the result is not a
  projection. Followed as printed, to measure the error. The algorithm requires M and M^+ before a deletion, so training
  computes them, and each deletion updates them for the next.
* `LIVE`: option 1 of all live nodes, which is Lethe's projection except for faint directions.
* `OFFICIAL`: the code. Option 1 in single precision, the pseudo-inverse by `torch.linalg.pinv` with its default cutoff,
  and the rows of all nodes that remain (the arXiv and Products scripts). The scripts for Cora and Pubmed take training
  nodes alone, and predict from features that were never propagated: `pred` computes them and then multiplies X.
  Followed here are the scripts whose projection keeps the space of W, the span of all nodes' features. Single precision
  costs more than its rounding: pinv's default cutoff on M, d eps, also drops directions that remaining nodes support.
"""

from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.baselines.linear import LinearModel, fitted, remaining, without_nodes
from benchmarks.baselines.protocol import Nodes
from projector import ModelSpec
from projector.graph.features import FeatureMatrix
from projector.graph.graph import Features, Graph, feature_rows

#: Maximum share of nonzero entries at which features are multiplied in sparse form; above it, dense rows are faster.
_SPARSE = 0.05


class Printed(Enum):
    """Form of Algorithm 1."""

    OPTION_1 = auto()
    OPTION_2 = auto()
    LIVE = auto()
    OFFICIAL = auto()


@dataclass(frozen=True, eq=False)
class PrintedModel(LinearModel):
    """Weights after some projections."""

    form: Printed
    #: M and M^+ of the live nodes for `OPTION_2`, (d, d) each.
    precomputed: tuple[Tensor, Tensor] | None

    def unlearn(self, nodes: Nodes) -> "PrintedModel":
        """Apply one projection for all of `nodes` together."""
        live, graph = without_nodes(self.live, nodes), remaining(self.graph, nodes)
        if self.precomputed is not None:
            M, M_inverse = option_2(*self.precomputed, torch.from_numpy(feature_rows(self.graph.features, nodes)))
        else:
            kept = graph.train_mask if self.form is Printed.OPTION_1 else live
            M, M_inverse = option_1(graph.features, kept, single=self.form is Printed.OFFICIAL)
        W = torch.from_numpy(self.weights).to(M.dtype)
        # Multiplying from the right, as in Section 3.2, takes d^2. Their code multiplies from the left, which takes
        # d^3.
        projected = M @ M_inverse @ W if self.form is Printed.OFFICIAL else M @ (M_inverse @ W)
        weights = projected.to(torch.float64).numpy()
        left = None if self.precomputed is None else (M, M_inverse)
        return PrintedModel(graph, self.spec, live, weights, self.form, left)


@dataclass(frozen=True)
class PrintedProjector:
    """Forgets by Algorithm 1 of the paper, in one of its forms. Training is the same for all."""

    spec: ModelSpec
    form: Printed

    def fit(self, graph: Graph) -> PrintedModel:
        """As `Baseline.fit`."""
        found = fitted(graph, self.spec)
        gram = option_1(found.graph.features, found.live, single=False) if self.form is Printed.OPTION_2 else None
        return PrintedModel(found.graph, found.spec, found.live, found.weights, self.form, gram)


def option_1(features: Features, kept: NDArray[np.bool_], *, single: bool) -> tuple[Tensor, Tensor]:
    """Return M_remain and M_remain^+, (d, d) each, from the rows in `kept` (n,); `single` precision as in the authors'
    code.
    """
    if not single and not isinstance(features, np.ndarray) and features.nnz <= _SPARSE * np.prod(features.shape):
        M = FeatureMatrix(features).gram(kept)
    else:
        rows = torch.from_numpy(feature_rows(features, np.flatnonzero(kept)))
        rows = rows.to(torch.float32) if single else rows
        M = rows.T @ rows
    # Their code does not use the symmetry, which would also change the rounding.
    return M, torch.linalg.pinv(M, hermitian=not single)


def option_2(M: Tensor, M_inverse: Tensor, X_D: Tensor) -> tuple[Tensor, Tensor]:
    """Return M_remain and its pseudo-inverse as printed, (d, d), from M, M^+ and the deleted rows X_D (m, d).

    The order of products takes the m d^2 of the paper's Section 3.2 rather than d^3.
    """
    Y = X_D @ M_inverse
    return M - X_D.T @ X_D, M_inverse + Y.T @ (Y - torch.linalg.multi_dot([X_D, X_D.T, Y]))
