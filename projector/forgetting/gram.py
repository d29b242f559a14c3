"""The Gram matrix of the features and its pseudo-inverse, kept exact while rows leave.

`M = X^T X` and `M+` describe the span of all live nodes' features. `factorise` computes both from the rows. `downdate`
removes rows and returns the span directions lost with them. `pinv_residuals` and `rank_residual` check that a downdated
pseudo-inverse is still one.

M+ carries the *strong* directions. A *faint* one has weaker support and still belongs to the span. `rank` decides which
is which, and which are *lost* with the rows.

Letters: X (n, d) features, M (d, d) Gram matrix, M+ its Moore-Penrose inverse, D the deleted rows, K = X_D M+ X_D^T
their leverages, Q (d, k) the lost directions. Everything is float64.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from projector.forgetting.factors import (
    DelayedInverse,
    Matrix,
    PseudoInverse,
    RowGram,
    goes_through_rows,
    leverages,
    plus,
    stored,
    whole,
    without,
)
from projector.forgetting.rank import (
    LEVERAGE_MARGIN,
    RANK_TOLERANCE,
    SUPPORT_TOLERANCE,
    has_faint,
    parts,
    supported,
)
from projector.forgetting.symmetric import by_columns, rank_update, symmetrise
from projector.graph.features import FeatureMatrix

#: Upper limit on the residuals at which a downdated pseudo-inverse is kept.
ACCEPTANCE = 1e-6
#: A residual up to this never justifies a recomputation.
_PRECISE = 1e-9
#: Remnants of lost directions up to this share of M+ never justify one either, since rounding adds to them in every
#: batch. [Citeseer, after 24 batches: 2e-9.]
_STRAY = 1e-7
#: Residual, in units of eps |M| |M+|, that a recomputation would have too.
_ROUNDING = 2 * torch.finfo(torch.float64).eps
#: Random vectors that test the pseudo-inverse after each downdate.
_PROBES = 4
#: Batches of at least this share of d skip the update for a decomposition: about break-even, for d = 129 to 1,433.
LARGE_BATCH = 0.75
#: Rows that wait to be added to M+, as a share of d: its products then take half as long again.
_MOST_ROWS = 0.25
#: Rounds of subtracting supported parts from candidates for lost directions, and the least part that a round keeps. A
#: lost direction is missed if the deleted rows held less than that of it beside a faint one.
_TURNS, _LEAST_LEFT = 17, 1e-4
#: A downdated M settles the rank if no eigenvalue lies within this factor of the cutoff, on either side.
_UNDECIDED = 1e-3


class FactorMethod(StrEnum):
    """How a pseudo-inverse was obtained."""

    #: No row left the span.
    NONE = "none"
    #: The rank-revealing Woodbury update.
    DOWNDATE = "downdate"
    #: The Woodbury update for joining rows, with the directions they add.
    UPDATE = "update"
    #: An eigendecomposition of the updated Gram matrix.
    DECOMPOSE = "decompose"
    #: A new Gram matrix from the rows, and its eigendecomposition.
    REFACTORISE = "refactorise"
    #: The same on a larger scale, after rows much longer than those at import joined.
    RESCALE = "rescale"


@dataclass(frozen=True, eq=False)
class Gram:
    """M, M+, the rank of the span and the scale for every rank decision."""

    #: X^T X over the rows in the span, (d, d).
    M: Matrix
    #: Moore-Penrose inverse of M, (d, d).
    M_pinv: PseudoInverse
    rank: int
    #: Largest eigenvalue of M at import, or after much longer rows joined. Never lowered, since later maxima may be
    #: noise.
    sigma_ref_squared: float
    #: sigma_max / sigma_min over the directions kept at the last factorisation.
    condition_number: float
    rank_tolerance: float = RANK_TOLERANCE
    #: tr(M M+), carried over from update to update; None: compute it from the matrices.
    trace: float | None = None

    @property
    def is_full(self) -> bool:
        """Return whether every direction is strong."""
        return self.rank == self.M.shape[0]

    @property
    def stored(self) -> Tensor:
        """The largest matrix that a batch reads."""
        return stored(self.M_pinv)

    @property
    def cutoff(self) -> float:
        """The eigenvalue of M above which a direction is strong."""
        return self.rank_tolerance * self.sigma_ref_squared

    @property
    def support_limit(self) -> float:
        """The singular value at or below which rows are rounding."""
        return float(SUPPORT_TOLERANCE * self.sigma_ref_squared**0.5)

    def compact(self, features: FeatureMatrix, in_span: NDArray[np.bool_]) -> "Gram":
        """Return the same in the form that suits `features`, whose rows `in_span` (n,) are those of M."""
        if isinstance(self.M, RowGram):
            return replace(self, M=RowGram(features, in_span))
        if not goes_through_rows(features) or not isinstance(self.M_pinv, Tensor):
            return self
        return replace(self, M=RowGram(features, in_span), M_pinv=DelayedInverse(self.M_pinv), trace=_trace(self))

    def settle(self) -> None:
        """Add the waiting rows to the stored M+, which contains traces of deleted rows until then."""
        if isinstance(self.M_pinv, DelayedInverse):
            self.M_pinv.settle()


@dataclass(frozen=True, eq=False)
class Spectrum:
    """A Gram matrix and its eigendecomposition M = V diag(eigenvalues) V^T, until `from_spectrum` overwrites V."""

    M: Tensor
    #: Ascending, (d,).
    eigenvalues: Tensor
    #: Orthonormal columns, (d, d).
    vectors: Tensor


@dataclass(frozen=True, eq=False)
class Downdate:
    """The result of removing rows."""

    gram: Gram
    #: Orthonormal basis of the directions that left M+ and have no surviving support, (d, k); k may be 0.
    lost_directions: Tensor
    #: Number of directions that left M+ but still have faint support.
    weakened: int
    method: FactorMethod


def factorise(
    features: FeatureMatrix,
    in_span: NDArray[np.bool_],
    *,
    sigma_ref_squared: float | None = None,
    rank_tolerance: float = RANK_TOLERANCE,
) -> Gram:
    """Compute M from the rows of the mask `in_span` (n,), and M+ from its eigendecomposition.

    `sigma_ref_squared` is the scale fixed at import; None makes this factorisation the import.
    """
    gram = from_spectrum(spectrum_of(features, in_span), sigma_ref_squared, rank_tolerance)
    return gram.compact(features, in_span)


def spectrum_of(features: FeatureMatrix, in_span: NDArray[np.bool_]) -> Spectrum:
    """Return the Gram matrix of the rows of the mask `in_span` (n,) with its eigendecomposition."""
    M = features.gram(in_span)
    eigenvalues, vectors = torch.linalg.eigh(M)
    return Spectrum(M, eigenvalues, vectors)


def from_spectrum(
    spectrum: Spectrum, sigma_ref_squared: float | None = None, rank_tolerance: float = RANK_TOLERANCE
) -> Gram:
    """Return the factors of an eigendecomposition. None for `sigma_ref_squared` uses its largest eigenvalue.

    Scales the kept eigenvectors in place, which saves two matrices of that size. The others stay orthonormal.
    """
    if sigma_ref_squared is None:
        sigma_ref_squared = max(float(spectrum.eigenvalues[-1]), 0.0)
    # Strictly above: with an all-zero matrix the cutoff is 0 and nothing is kept.
    rank = int((spectrum.eigenvalues > rank_tolerance * sigma_ref_squared).sum())
    missing = spectrum.eigenvalues.shape[0] - rank
    values = spectrum.eigenvalues[missing:]
    scaled = spectrum.vectors[:, missing:].div_(values.sqrt())
    condition = float((values[-1] / values[0]).sqrt()) if rank else 1.0
    return Gram(spectrum.M, symmetrise(scaled @ scaled.T), rank, sigma_ref_squared, condition, rank_tolerance)


def downdate(
    gram: Gram,
    X_D: Tensor,
    features: FeatureMatrix,
    surviving: NDArray[np.bool_],
) -> Downdate:
    """Take the rows X_D (m, d) out of the span; `surviving` (n,) masks the rows of `features` that stay.

    Uses the rank-revealing Woodbury update: eigenvectors of the leverages near 1 are candidates for lost directions,
    and the surviving rows decide which are lost. Falls back to `factorise` if a candidate survives, a direction may
    have become faint, or the result fails the acceptance test. For a batch that is large against d, decomposing the
    downdated M is cheaper, at a cost independent of n.
    """
    large = X_D.shape[0] >= LARGE_BATCH * gram.M.shape[0]
    # Free the attempt's memory before recomputing the factors.
    done = _decomposed(gram, X_D, features, surviving) if large else _updated(gram, X_D, features, surviving)
    if done is not None:
        return done
    fresh = factorise(features, surviving, sigma_ref_squared=gram.sigma_ref_squared, rank_tolerance=gram.rank_tolerance)
    return _recomputed(gram, fresh, X_D, features, surviving, FactorMethod.REFACTORISE)


def lost_with(gram: Gram, X_D: Tensor, features: FeatureMatrix, surviving: NDArray[np.bool_]) -> Tensor:
    """Return an orthonormal basis (d, k) of all directions, strong or faint, that only the rows X_D (m, d) supported.

    `gram` is that of the surviving rows. Rounding limits what is known of X_D outside of the strong span. So the rows
    decide both conditions: no surviving row supports the direction, and rows of X_D do.
    """
    candidates, sizes = outside(gram, X_D)
    lost = _unsupported(gram, features, surviving, candidates[:, sizes > gram.support_limit])
    _, sigma, right = torch.linalg.svd(X_D @ lost, full_matrices=False)
    supported: Tensor = lost @ right[sigma > gram.support_limit].T
    return supported


def supports_nothing(gram: Gram, features: FeatureMatrix, surviving: NDArray[np.bool_]) -> bool:
    """Return whether the surviving rows, whose factors are `gram`, support no direction."""
    return gram.rank == 0 and bool(features.gram(surviving).trace() <= gram.support_limit**2)


def _updated(gram: Gram, X_D: Tensor, features: FeatureMatrix, surviving: NDArray[np.bool_]) -> Downdate | None:
    """Return the Woodbury update; None if a candidate survives, a direction may be faint now, or it is not accepted."""
    Y, K = leverages(gram.M_pinv, X_D)
    identity = torch.eye(K.shape[0], dtype=K.dtype, device=K.device)
    # A Cholesky factor exists exactly if no leverage eigenvalue reaches 1 - margin.
    if int(torch.linalg.cholesky_ex((1.0 - LEVERAGE_MARGIN) * identity - K).info) == 0:
        scaled = torch.linalg.solve_triangular(torch.linalg.cholesky(identity - K), Y, upper=False)
        M_pinv = plus(gram.M_pinv, scaled, 1.0)
        left, sigma = X_D.new_zeros((X_D.shape[1], 0)), X_D.new_zeros(0)
    else:
        eigenvalues, vectors = torch.linalg.eigh(K)
        candidate = eigenvalues >= 1.0 - LEVERAGE_MARGIN
        left, sigma = supported(features, surviving, torch.linalg.qr(Y.T @ vectors[:, candidate]).Q)
        if bool((sigma > gram.cutoff**0.5).any()):
            return None
        others = vectors[:, ~candidate]
        scaled = (others.T @ Y) / (1.0 - eigenvalues[~candidate]).sqrt()[:, None]
        M_pinv = without(plus(gram.M_pinv, scaled, 1.0), left)
    if has_faint(M_pinv, gram.cutoff):
        return None
    M = RowGram(features, surviving) if isinstance(gram.M, RowGram) else rank_update(gram.M, X_D, -1.0)
    updated = carried_over(gram, M, M_pinv, gram.rank - left.shape[1], -float(K.trace()))
    if not accepted(updated):
        return None
    return _split(updated, left, features, surviving, FactorMethod.DOWNDATE, sigma)


def _decomposed(gram: Gram, X_D: Tensor, features: FeatureMatrix, surviving: NDArray[np.bool_]) -> Downdate | None:
    """Return the factors of the downdated M; None if rounding in M blurs an eigenvalue near the cutoff."""
    M = features.gram(surviving) if isinstance(gram.M, RowGram) else torch.addmm(gram.M, X_D.T, X_D, alpha=-1.0)
    spectrum = Spectrum(symmetrise(M), *torch.linalg.eigh(M))
    fresh = settled(spectrum, gram, features, surviving)
    return None if fresh is None else _recomputed(gram, fresh, X_D, features, surviving, FactorMethod.DECOMPOSE)


def settled(spectrum: Spectrum, earlier: Gram, features: FeatureMatrix, in_span: NDArray[np.bool_]) -> Gram | None:
    """Return the factors of an updated M on the scale of `earlier`; None if its rounding leaves the rank in doubt."""
    cutoff = earlier.cutoff
    undecided = (spectrum.eigenvalues > cutoff * _UNDECIDED) & (spectrum.eigenvalues < cutoff / _UNDECIDED)
    if bool(undecided.any()):
        return None
    fresh = from_spectrum(spectrum, earlier.sigma_ref_squared, earlier.rank_tolerance)
    return fresh.compact(features, in_span) if accepted(fresh) else None


def carried_over(gram: Gram, M: Matrix, M_pinv: PseudoInverse, rank: int, gained: float) -> Gram:
    """Return the factors M and M+ after rows X joined or left, with the trace that follows from that of `gram`.

    `gained` is tr(X M+ X^T) with the earlier M+, negative for rows that left. If many rows wait to be added to the new
    M+, this adds them.
    """
    trace = None
    if gram.trace is not None and isinstance(M, RowGram) and isinstance(M_pinv, DelayedInverse):
        old = 0 if not isinstance(gram.M_pinv, DelayedInverse) else len(gram.M_pinv.rows)
        trace = gram.trace + gained + float(M.forms(M_pinv.rows[old:]) @ M_pinv.signs[old:])
        if len(M_pinv.rows) > _MOST_ROWS * M_pinv.shape[0]:
            M_pinv.settle()
    return replace(gram, M=M, M_pinv=M_pinv, rank=rank, trace=trace)


def _recomputed(
    earlier: Gram,
    fresh: Gram,
    X_D: Tensor,
    features: FeatureMatrix,
    surviving: NDArray[np.bool_],
    method: FactorMethod,
) -> Downdate:
    """Return the change of the span when `fresh` factors replace a downdate of `earlier`.

    The old span is the new one plus the deleted rows, so their largest parts outside of the new span are the ones lost.
    """
    gone = max(0, earlier.rank - fresh.rank)
    left = outside(fresh, X_D)[0][:, :gone] if gone else X_D.new_zeros((X_D.shape[1], 0))
    return _split(fresh, left, features, surviving, method)


def _split(
    gram: Gram,
    left: Tensor,
    features: FeatureMatrix,
    surviving: NDArray[np.bool_],
    method: FactorMethod,
    sigma: Tensor | None = None,
) -> Downdate:
    """Split the directions `left` (d, k) that left M+ into lost and faint ones; for `sigma` see `_unsupported`."""
    lost = _unsupported(gram, features, surviving, left, sigma)
    return Downdate(gram, lost, left.shape[1] - lost.shape[1], method)


def accepted(gram: Gram) -> bool:
    """Return whether M+ is a pseudo-inverse of M of the stated rank, about as accurate as a recomputation.

    A fixed limit alone would accept old errors: a barely supported direction makes M+ large, and once it is gone,
    errors from that time are no longer small against M+. [Cora, half deleted: 5e-8 under the fixed limit 1e-6.]
    """
    residual, stray = pinv_residuals(gram)
    if not (residual <= _PRECISE and stray <= _STRAY):
        rounding = _ROUNDING * gram.sigma_ref_squared * float(torch.linalg.norm(whole(gram.M_pinv)))
        limit, stray_limit = (min(ACCEPTANCE, max(least, rounding)) for least in (_PRECISE, _STRAY))
        # Not a number is refused as well.
        if not (residual <= limit and stray <= stray_limit):
            return False
    return rank_residual(gram) <= ACCEPTANCE


def pinv_residuals(gram: Gram, probes: int | None = _PROBES) -> tuple[float, float]:
    """Return |M+ M M+ - M+|_F and |M M+ M+ - M+|_F, relative to |M+|_F.

    They are estimated on `probes` Gaussian vectors, or exact for None. The estimate is unbiased for the squared norms
    and costs O(d^2) instead of O(d^3). Its accuracy is in `tests/unit/projector/forgetting/test_gram.py`.

    The first sees parts of M+ that link M's span with lost directions only by their square; the second sees them in
    full. (|M M+ M - M| would miss errors of M+.)
    """
    M_pinv = gram.M_pinv
    if probes is None:
        applied = whole(M_pinv)
    else:
        generator = torch.Generator().manual_seed(gram.rank)
        draws = torch.randn((M_pinv.shape[0], probes), dtype=torch.float64, generator=generator)
        applied = M_pinv @ by_columns(draws.to(M_pinv.device))
    norm = float(torch.linalg.norm(applied))
    if norm == 0.0:
        return 0.0, 0.0
    # One product reads M+ once for both.
    inside, twice = (M_pinv @ by_columns(torch.cat([gram.M @ by_columns(applied), applied], dim=1))).chunk(2, dim=1)
    first, second = inside - applied, gram.M @ by_columns(twice) - applied
    return float(torch.linalg.norm(first)) / norm, float(torch.linalg.norm(second)) / norm


def rank_residual(gram: Gram) -> float:
    """Return |tr(M M+) - rank|: the trace of a projector is its rank."""
    return abs((_trace(gram) if gram.trace is None else gram.trace) - gram.rank)


def _trace(gram: Gram) -> float:
    return float(torch.dot(whole(gram.M).reshape(-1), whole(gram.M_pinv).reshape(-1)))


def _unsupported(
    gram: Gram,
    features: FeatureMatrix,
    surviving: NDArray[np.bool_],
    directions: Tensor,
    sigma: Tensor | None = None,
) -> Tensor:
    """Return an orthonormal basis (d, k) of the part of span(`directions`) (d, c, orthonormal) that no row supports.

    `sigma` (c,) are their singular values if `supported` returned them.

    Directions from the Gram matrix hold traces of strong ones, [7e-14 to 7e-9 of sigma_ref at condition numbers from
    1e2 to 5e4], and of faint ones that rows support: the parts inside and outside of the strong span of X^T X times
    such a mixture. The rounds subtract the two alternately, since removing one exposes more of the other.
    """
    if directions.shape[1] == 0:
        return directions
    limit = gram.support_limit
    found = faint = directions[:, :0]
    for turn in range(_TURNS):
        if sigma is None:
            directions, sigma = supported(features, surviving, directions)
        found, directions = torch.cat([found, directions[:, sigma <= limit]], dim=1), directions[:, sigma > limit]
        if directions.shape[1] == 0:
            break
        moved = features.transposed_matmul(parts(features, surviving, directions))
        if turn % 2 == 0:
            strong = gram.M_pinv @ moved
            left = directions - strong + directions @ (directions.T @ strong)
        else:
            # Keep subtracting earlier ones, or one would return with each of the others.
            faint = torch.linalg.qr(torch.cat([faint, off_strong(gram, moved)], dim=1)).Q
            left = directions - faint @ (faint.T @ directions)
        # Unsupported directions stay as they are: for pure rounding, `faint` can point anywhere.
        left, sizes, _ = torch.linalg.svd(left - found @ (found.T @ left), full_matrices=False)
        directions, sigma = left[:, sizes > _LEAST_LEFT], None
    return found


def outside(gram: Gram, X_D: Tensor) -> tuple[Tensor, Tensor]:
    """Return an orthonormal basis of the rows X_D (m, d) outside of the strong span, and its sizes, descending."""
    rows = torch.linalg.qr(X_D, mode="r").R if X_D.shape[0] > X_D.shape[1] else X_D
    left, sizes, _ = torch.linalg.svd(off_strong(gram, rows.T), full_matrices=False)
    return left, sizes


def off_strong(gram: Gram, vectors: Tensor) -> Tensor:
    """Return the parts of `vectors` (d, k) outside of the strong span: (I - M+ M)(I - M M+) applied to them."""
    outside = vectors - gram.M @ (gram.M_pinv @ vectors)
    return outside - gram.M_pinv @ (gram.M @ outside)
