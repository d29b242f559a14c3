"""Formulas for the traffic and memory of several workers; `workers` measures them."""

import math
from collections.abc import Sequence

from benchmarks.performance.scale.gpu import PRODUCTS, spec_of
from benchmarks.performance.scale.graph import Shape
from projector.device import in_file
from projector.network.inputs import SWEEP_BYTES
from projector.network.product_costs import keeps_dense
from projector.network.row_share import LEAST_ENTRIES
from projector.network.sizes import Sizes
from projector.network.spec import ModelSpec

H, BLOCKS, SINGLE_BLOCKS = "H, columns to rows", "class blocks", "class blocks in single precision"
GRADIENT, PRODUCT, COEFFICIENTS, PREDICTIONS = "gradient", "product with the Hessian", "coefficients", "predictions"
MIB = 1 << 20
#: Python and its libraries.
PYTHON = 180 * MIB
_WORD = 8


def traffic(spec: ModelSpec, sizes: Sizes, workers: int) -> dict[str, float]:
    """Return the bytes that all workers together send, by step; docs/scale.md defines the letters."""
    t, n, C, p, N = sizes.training, sizes.nodes, sizes.classes, sizes.rows_of_weights(spec), workers
    weights, others = _WORD * p * C, N - 1
    divides = N > 1 and 2 * sizes.edges + n >= LEAST_ENTRIES

    def swept(columns: int) -> float:
        """Return the bytes of all products with P of one sweep: columns to all, and rows of the product back."""
        return spec.hops * _WORD * n * columns * others * (1 + 1 / N) if divides else 0.0

    # The first worker already has its own classes, at least as many as any other.
    to_first = _WORD * n * (C - math.ceil(C / N))
    step: float
    if keeps_dense(spec, sizes):
        step = 3 * others * weights
    else:
        step = (
            others * weights + 2 * _WORD * t * C * others / N + others * _WORD * p * N * math.ceil(C / N) + 2 * swept(C)
        )
    blocks = 2 * others * _WORD * C * p * p
    return {
        GRADIENT: step, PRODUCT: step, H: _WORD * t * p * others / N + swept(sizes.width(spec)),
        BLOCKS: blocks, SINGLE_BLOCKS: blocks / 2,
        COEFFICIENTS: others * _WORD * t * C + len(spec.block_hops) * to_first + swept(C),
        PREDICTIONS: others * weights + to_first + swept(C),
    }  # fmt: skip


def held(spec: ModelSpec, sizes: Sizes, workers: int, *, preconditioned: bool) -> float:
    """Return the maximum of own bytes of a worker other than the first. The graph is mapped, so one host shares it."""
    t, n, C, p, N = sizes.training, sizes.nodes, sizes.classes, sizes.rows_of_weights(spec), workers
    b, dense = len(spec.block_hops), keeps_dense(spec, sizes)
    entries = 2 * sizes.edges + n
    divides = N > 1 and entries >= LEAST_ENTRIES
    own = entries / N if divides else entries
    # The pattern of A + I, the values of P of two versions, and room to make them in parts.
    operators = 21 * own + 60 * n + 2 * _WORD * min(own, 1 << 22)
    swept = min(math.ceil(C / N), max(1, SWEEP_BYTES // (_WORD * n * b)))
    of_rows = 192 * t * C + (12 * t * p if dense else _WORD * t * p if preconditioned else 0)
    block = 2 * _WORD * p * p + _WORD * p * min(t, max(2_000, 2 * p)) / N if preconditioned else 0
    return operators + of_rows / N + block + _WORD * n * (2 * b + 1) * swept


def held_by_first(spec: ModelSpec, sizes: Sizes, workers: int, *, preconditioned: bool) -> float:
    """Return the maximum of own bytes of the first worker, with class blocks in single precision if `preconditioned`.

    Span coefficients in a file are not its own.
    """
    n, C, p, d, b = sizes.nodes, sizes.classes, sizes.rows_of_weights(spec), sizes.features, len(spec.block_hops)
    coefficients = _WORD * n * b * C
    alone = 3 * _WORD * n * C + 7 * _WORD * d * d + (4 * p * p * C if preconditioned else 0)
    alone += 0 if in_file(coefficients, "cpu") else 2 * coefficients
    return held(spec, sizes, workers, preconditioned=preconditioned) + alone


def on_paper(counts: Sequence[int]) -> str:
    """Evaluate the formulas for a graph of the size of ogbn-products."""
    shape, spec = Shape(), spec_of(PRODUCTS)
    stored = shape.nodes * shape.features
    sizes = Sizes(shape.nodes, shape.edges, shape.features, shape.classes, shape.training, stored, sparse=False)
    lines = ["| on paper, MiB | " + " | ".join(map(str, counts)) + " |", f"| --- {'| ---: ' * len(counts)}|"]
    steps = {count: traffic(spec, sizes, count) for count in counts}
    for count in counts:
        steps[count]["held by another"] = held(spec, sizes, count, preconditioned=True)
    for step in steps[counts[0]]:
        cells = [f"{steps[count][step] / MIB:,.1f}" for count in counts]
        lines += [f"| {step} | {' | '.join(cells)} |"]
    mapped = 24 * sizes.edges + 4 * stored + 15 * sizes.nodes
    return "\n".join([*lines, f"Mapped, once a host: {mapped / MIB:,.0f} MiB."])
