"""Estimates, before any product, of what products with the representation H cost: through its factors or with H itself.

H (n_train, p) is dense even if features and propagation are sparse. So on citation graphs its factors need a hundredth
of its operations. But a dense product takes far less time per operation: with few features, many classes and several
hops, H itself wins. The estimate depends on sizes alone. So the same inputs take the same path and, on the CPU, give
the same bits. Its constants were fitted to measurements of `benchmarks/performance/batches/products.py` (AMD EPYC, 2
threads).
"""

from dataclasses import dataclass

from projector.network.sizes import Sizes
from projector.network.spec import ModelSpec, SolverKind

#: Largest size of H to keep. H only saves time, so a larger one is no reason to refuse a model.
LARGEST_H = 1 << 30
#: ... and it must be this many times faster by the estimate, which is accurate to a factor of two.
_CLEARLY = 2.0
#: Time of a product with H in single precision, as nearly all are, as a share of one in double.
_SINGLE = 0.5
_WORD = 8
#: Seconds per stored value of a dense matrix in a product, and per multiplication with it.
_DENSE_VALUE, _DENSE_MULTIPLICATION = 1.2e-9, 0.03e-9
#: Seconds per multiplication with a value of a sparse matrix, if the columns it reads fit the cache, and if not.
_SPARSE_NEAR, _SPARSE_FAR = 0.25e-9, 1.0e-9
_CACHE = 8 << 20
#: Seconds per node and column for the work around a propagation: sums, copies.
_ELEMENT = 2e-9


@dataclass(frozen=True)
class ProductCosts:
    """Estimated seconds of one H W plus one H^T R, for W (p, C) and R (n_train, C)."""

    factors: float
    dense: float


def keeps_dense(spec: ModelSpec, sizes: Sizes) -> bool:
    """Return whether training `spec`, or repairing it by Newton's method, computes its products with H itself.

    Always False with minibatches, which read the rows of H from disk.
    """
    if spec.solver is SolverKind.SGD and spec.batch_size:
        return False
    costs = product_costs(spec, sizes)
    return dense_bytes(spec, sizes) <= LARGEST_H and _CLEARLY * _SINGLE * costs.dense <= costs.factors


def dense_bytes(spec: ModelSpec, sizes: Sizes) -> int:
    """Return the size of H, (n_train, p), in double plus single precision."""
    return sizes.training * sizes.rows_of_weights(spec) * (_WORD + _WORD // 2)


def product_costs(spec: ModelSpec, sizes: Sizes) -> ProductCosts:
    """Return the estimate for `spec` on a graph of `sizes`."""
    C = sizes.classes
    far = sizes.nodes * C * _WORD > _CACHE
    multiplication = _SPARSE_FAR if far else _SPARSE_NEAR
    width = C * len(spec.block_hops)
    if sizes.sparse and not spec.mlp_width:
        features = multiplication * sizes.stored_values * width
    else:
        features = dense_seconds(sizes.nodes * sizes.width(spec), width)
    propagation = C * (multiplication * (2 * sizes.edges + sizes.nodes) + _ELEMENT * sizes.nodes)
    once = features + _propagations(spec) * propagation
    return ProductCosts(factors=2 * once, dense=2 * dense_seconds(sizes.training * sizes.rows_of_weights(spec), C))


def dense_seconds(values: int, columns: int) -> float:
    """Return the estimate for a dense matrix of `values` entries times one with `columns` columns."""
    return values * (_DENSE_VALUE + _DENSE_MULTIPLICATION * columns)


def _propagations(spec: ModelSpec) -> int:
    """Return how often C columns are propagated: once per hop, with diffusion once per block still in the sweep."""
    if not spec.diffusion:
        return max(spec.hops, spec.label_hops)
    return spec.label_hops + sum(sum(hop <= last for last in spec.block_hops) for hop in range(1, spec.hops + 1))
