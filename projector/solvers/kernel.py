"""The squared loss if H has fewer rows than columns: by the kernel K = H H^T of the training rows.

(H^T H / n + lambda I)^-1 = (I - H^T (K + n lambda I)^-1 H) / lambda (Woodbury), so systems with K replace those with
the larger matrix. With class weights D, one per row, H^T D H takes the place of H^T H and n lambda D^-1 that of
n lambda I. K only preconditions: gradients and Hessian products go through H, so errors in K never reach the
weights or the certificate.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from projector.network.losses import row_weights
from projector.network.representation import Representation
from projector.solvers.normal_equations import LARGEST_MATRIX, takes_normal_equations
from projector.solvers.objective import Objective

#: Remaining share of the right-hand side, and largest number of steps.
_TOLERANCE = 1e-10
_MAX_STEPS = 200
_WORD = 8
#: Rows of K computed at a time, up to the diagonal.
_BAND = 1_024


def takes_kernel(rows: int, columns: int) -> bool:
    """Return whether K is kept for H (rows, columns): fewer rows than columns, and not too large."""
    return 0 < rows < columns and rows**2 * _WORD <= LARGEST_MATRIX


def factorises(rows: int, columns: int) -> bool:
    """Return whether the squared loss is trained by one factorisation, of its normal equations or of its kernel."""
    return takes_normal_equations(rows, columns) or takes_kernel(rows, columns)


def kernel_of(representation: Representation) -> Tensor:
    """Return H H^T, (n_train, n_train), from a few columns of H at a time; for one worker."""
    K = torch.zeros((representation.rows,) * 2, dtype=torch.float64, device=representation.device)
    bands = range(0, representation.rows, _BAND)
    for _, columns in representation.column_chunks():
        for first in bands:
            stop = first + _BAND
            K[first:stop, :stop].addmm_(columns[first:stop], columns[:stop].T)
    for first in bands:
        # So far only the diagonal blocks and those below them are filled.
        stop = first + _BAND
        K[first:stop, stop:] = K[stop:, first:stop].T
    return K


@dataclass(frozen=True, eq=False)
class KernelFactor:
    """The Cholesky factor of K + n lambda D^-1 for some training nodes; a trace of every row behind it."""

    #: (n, n) float64, lower triangular.
    cholesky: Tensor
    #: The nodes, (n,), ascending.
    nodes: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class KernelObjective(Objective):
    """F of the squared loss through H, with its kernel."""

    #: H H^T, (n_train, n_train).
    K: Tensor
    #: The training nodes, (n_train,), ascending.
    nodes: NDArray[np.int64]

    def factor(self) -> KernelFactor:
        """Return the factor of this K. Raises ArithmeticError if none exists."""
        shifted = self.K.clone()
        shifted.diagonal().add_(self._shift[:, 0])
        cholesky, failed = torch.linalg.cholesky_ex(shifted)
        if bool(failed):
            raise ArithmeticError("the kernel has no Cholesky factor")
        return KernelFactor(cholesky, self.nodes)

    def solve(self, factor: KernelFactor, gradient: Tensor) -> Tensor:
        """Return the inverse Hessian applied to (p, C); `factor` may come from an earlier graph."""
        representation = self.representation
        inner = self._solved(factor, representation.logits(gradient))
        return (gradient - representation.transposed(inner)) / self.regularization

    @property
    def _shift(self) -> Tensor:
        """n lambda / w of each row, (n_train, 1)."""
        weights = row_weights(self.loss, self.labels)
        shift = self.K.new_full((self.K.shape[0], 1), self.weighted_rows * self.regularization)
        return shift if weights is None else shift / weights[:, None]

    def _solved(self, factor: KernelFactor, right: Tensor) -> Tensor:
        """Return (K + n lambda D^-1)^-1 right, by conjugate gradients preconditioned with `factor`."""
        known = np.isin(self.nodes, factor.nodes)
        places = torch.from_numpy(np.searchsorted(factor.nodes, self.nodes[known])).to(right.device)
        ours = torch.from_numpy(np.flatnonzero(known)).to(right.device)
        shift = self._shift
        diagonal = self.K.diagonal()[:, None] + shift
        padded = right.new_zeros((factor.nodes.size, right.shape[1]))

        def precondition(R: Tensor) -> Tensor:
            # A principal part of the inverse, which is positive definite, and the diagonal for nodes that came later.
            out = R / diagonal
            padded[places] = R[ours]
            out[ours] = torch.cholesky_solve(padded, factor.cholesky)[places]
            return out

        goal = _TOLERANCE * float(torch.linalg.norm(right))
        solved, left = torch.zeros_like(right), right.clone()
        search = precondition(left)
        weight = float((left * search).sum())
        for _ in range(_MAX_STEPS):
            if not weight > 0.0 or float(torch.linalg.norm(left)) <= goal:
                break
            product = torch.addmm(shift * search, self.K, search)
            length = weight / float((search * product).sum())
            solved.add_(search, alpha=length)
            left.sub_(product, alpha=length)
            following = precondition(left)
            weight, previous = float((left * following).sum()), weight
            search = following.add_(search, alpha=weight / previous)
        return solved
