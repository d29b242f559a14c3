"""Check that enough memory is free before work starts.

The estimates cover what grows with the model: operators, Gram factors, weights and arrays C wide per node. They exclude
what is in memory already: the graph, the interpreter and its libraries.
"""

import math
import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from projector.device import in_file
from projector.errors import DeviceError
from projector.graph.ranges import index_type
from projector.network.hop_distances import COLUMNS_BYTES
from projector.network.inputs import SWEEP_BYTES
from projector.network.losses import loss_of
from projector.network.product_costs import dense_bytes, keeps_dense
from projector.network.sizes import Sizes
from projector.network.spec import LossKind, ModelSpec, SolverKind
from projector.solvers.class_curvature import curvature_bytes
from projector.solvers.kernel import factorises
from projector.solvers.normal_equations import takes_normal_equations

#: Bytes of a float64, and of an int64 index.
_WORD = 8
#: d x d matrices while decomposing the Gram matrix: itself, its eigenvectors, and twice that as workspace of LAPACK's
#: divide and conquer, rounded up. [coauthor_cs, d = 6,805: 4.14 by `benchmarks/performance/batches/large_gram.py`.]
FACTORISING = 5
#: d x d matrices of the committed state, in use while a batch is computed beside it.
RESIDENT = 2
#: Arrays of the size of W while training: W, gradient, direction, residual, product, search, velocity and candidates.
_COPIES_OF_WEIGHTS = 10
#: W, B and T of the committed state and of the new one, with one temporary each.
_SERVED_WEIGHTS = 9
#: Bytes for each value of A + sI, besides its column: its presence (1), the values of P and P^T of two versions (32),
#: and a copy of the edges' presence (9). With weights, 8 bytes each instead of 1 for the presence of two versions.
_ENTRY_BYTES, _WEIGHT_BYTES = 44, 14
#: The same for an addition, besides two columns: presence in the larger graph (1), and a copy of the edges' values
#: while edges are inserted (8).
_JOINING_ENTRY_BYTES = 9
#: Bytes for each node of the larger graph: degrees, scales, masks, labels and rows held out.
_JOINING_NODE_BYTES = 60
#: Arrays (n, C): logits, probabilities, and those of a running sweep.
_COPIES_OF_LOGITS = 3
#: Arrays (n, blocks * C) of a running sweep, each at most `SWEEP_BYTES`.
_COPIES_OF_SWEEP = 4
#: Span coefficients of two versions.
_COPIES_OF_COEFFICIENTS = 2
#: Arrays (n_train, C): logits, residuals, slopes and curvatures of the points that a step evaluates, in both
#: precisions.
_COPIES_OF_TRAINING = 24
#: The sums of the squared loss, or its kernel, with lambda added, and its factor.
_COPIES_OF_SUMS = 3
#: Adaptive diffusion: arrays with a value per entry of A + I, for the pattern; for each hop, those of three versions'
#: operators, transposes and distances, with derivatives; and column chunks with their derivatives and products.
_PATTERN_ARRAYS = 8
_ARRAYS_OF_HOP = 11
_DIFFUSED_CHUNKS = 6


@dataclass(frozen=True)
class Need:
    """One use of memory."""

    what: str
    bytes: int


def training_needs(spec: ModelSpec, sizes: Sizes, device: torch.device | str = "cpu") -> tuple[Need, ...]:
    """Return what `build_model` holds on `device` at its peak."""
    p = sizes.rows_of_weights(spec)
    needs = [
        _gram_need(sizes.width(spec), FACTORISING),
        *_common_needs(spec, sizes, device),
        Need("weights and directions of the solver", _COPIES_OF_WEIGHTS * p * sizes.classes * _WORD),
    ]
    needs += _row_needs(spec, sizes)
    if spec.solver is SolverKind.NEWTON and spec.loss is not LossKind.SQUARED and not loss_of(spec.loss).coupled:
        needs.append(Need("the curvature of the classes", curvature_bytes(sizes.training, p, sizes.classes)))
    if spec.solver is SolverKind.SGD and spec.batch_size:
        rows = sizes.training * p * _WORD
        needs.append(Need("propagated features", 0 if in_file(rows, "cpu") else rows))
        needs.append(Need("a batch of propagated features", 2 * min(spec.batch_size, sizes.nodes) * p * _WORD))
    return tuple(needs)


def serving_needs(spec: ModelSpec, sizes: Sizes, device: torch.device | str = "cpu") -> tuple[Need, ...]:
    """Return a resident model's peak on `device`: a batch makes new factors and a larger graph beside those in use.

    Repairs use Newton's method, regardless of the solver that trained the model.
    """
    p = sizes.rows_of_weights(spec)
    return (
        _gram_need(sizes.width(spec), RESIDENT + FACTORISING),
        *_common_needs(spec, sizes, device),
        Need("weights and coefficients of two versions", _SERVED_WEIGHTS * p * sizes.classes * _WORD),
        *_row_needs(replace(spec, solver=SolverKind.NEWTON), sizes),
        joining_need(sizes),
    )


def joining_need(sizes: Sizes) -> Need:
    """Return what an addition needs beyond a deletion: the larger graph with its features."""
    # CSR: X and its transpose again; dense: one more copy.
    features = _csr_bytes(sizes) if sizes.sparse else sizes.stored_values * sizes.value_bytes
    graph = _entries(sizes, _JOINING_ENTRY_BYTES, columns=2) + _JOINING_NODE_BYTES * sizes.nodes
    return Need("the graph with additions", graph + features)


def require_memory(
    work: str,
    needs: Sequence[Need],
    device: torch.device | str,
    *,
    available: Callable[[torch.device], int | None] | None = None,
) -> None:
    """Raise DeviceError if `needs` exceed the free memory of `device`, with both in bytes and a remedy.

    `work` names the activity, as in "Training". Nothing is refused if the free memory is unknown.
    """
    device = torch.device(device)
    free = (available or available_bytes)(device)
    needed = sum(need.bytes for need in needs)
    if free is None or needed <= free:
        return
    largest = sorted(needs, key=lambda need: need.bytes, reverse=True)[:3]
    parts = "; ".join(f"{need.what}: {_readable(need.bytes)}" for need in largest)
    where = "memory" if device.type == "cpu" else f"memory of {device}"
    remedy = "Use fewer features or an MLP of smaller width (the Gram factors grow with the square of either), or "
    remedy += "a machine with more memory." if device.type == "cpu" else "a larger device, or --device cpu."
    raise DeviceError(
        f"{work} needs {needed:,} bytes ({_readable(needed)}) of {where}, and {free:,} ({_readable(free)}) are free. "
        f"The largest parts are {parts}.",
        remedy,
    )


def free_memory() -> int | None:
    """Return `available_bytes` of this machine's own memory."""
    return available_bytes(torch.device("cpu"))


def available_bytes(device: torch.device, *, root: Path = Path("/")) -> int | None:
    """Return the bytes that can still be allocated on `device`, None if unknown.

    On the CPU this is the least of three: what the kernel has available, what the limits of the process's control
    groups leave, and what its address space limit leaves. `root` is the folder with /proc and /sys.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    limits = [_kernel_available(root), *_control_groups(root), _address_space(root)]
    known = [limit for limit in limits if limit is not None]
    return max(min(known), 0) if known else None


def _gram_need(d: int, matrices: int) -> Need:
    return Need(f"{matrices} matrices of {d:,} x {d:,} for the Gram factors", matrices * d * d * _WORD)


def _row_needs(spec: ModelSpec, sizes: Sizes) -> list[Need]:
    """Return H and, for the squared loss, the sums over its rows, as far as the solver keeps them."""
    t, p = sizes.training, sizes.rows_of_weights(spec)
    kept = keeps_dense(spec, sizes)
    needs = [Need("the representation of the training nodes", dense_bytes(spec, sizes))] if kept else []
    if spec.solver is SolverKind.NEWTON and spec.loss is LossKind.SQUARED:
        rows = t * p if takes_normal_equations(t, p) and not kept else 0
        matrix = min(t, p) ** 2 if factorises(t, p) else 0
        needs.append(Need("the normal equations", (rows + _COPIES_OF_SUMS * matrix) * _WORD))
    return needs


def _entries(sizes: Sizes, each: int, columns: int) -> int:
    """Return the bytes of all values of A + sI, with `each` bytes beside a number of column indices."""
    entries = 2 * sizes.edges + sizes.nodes
    return entries * (each + columns * np.dtype(index_type(entries)).itemsize)


def _csr_bytes(sizes: Sizes) -> int:
    """Return the bytes of CSR features: values and columns of X and of its transpose, and the rows' ends."""
    return 2 * (2 * sizes.stored_values + sizes.nodes) * _WORD


def _common_needs(spec: ModelSpec, sizes: Sizes, device: torch.device | str) -> tuple[Need, ...]:
    # Dense: X in float64 unless H is kept.
    dense = sizes.stored_values * _WORD * (not keeps_dense(spec, sizes))
    features = _csr_bytes(sizes) if sizes.sparse else dense
    logits = sizes.nodes * sizes.classes * _WORD
    each = (len(spec.block_hops) * logits, spec.label_hops * logits)
    coefficients = sum(each)
    resident = sum(size for size in each if not in_file(size, device))
    needs = [
        Need("features", features),
        Need("the graph", _entries(sizes, _ENTRY_BYTES + _WEIGHT_BYTES * sizes.weighted, columns=1)),
        Need("logits", _COPIES_OF_LOGITS * logits + _COPIES_OF_SWEEP * min(coefficients, SWEEP_BYTES)),
        Need("span coefficients", _COPIES_OF_COEFFICIENTS * resident),
        Need("values of training nodes", _COPIES_OF_TRAINING * sizes.training * sizes.classes * _WORD),
    ]
    if spec.mlp_width:
        hidden = 2 * sizes.nodes * spec.mlp_width + 4 * sizes.features * spec.mlp_width
        needs.append(Need("the MLP and its output", hidden * _WORD))
    if spec.diffusion:
        entries = 2 * sizes.edges + sizes.nodes
        arrays = _PATTERN_ARRAYS + spec.hops * _ARRAYS_OF_HOP
        chunk = min(COLUMNS_BYTES, sizes.nodes * sizes.width(spec) * _WORD)
        needs.append(Need("adaptive diffusion", arrays * entries * _WORD + _DIFFUSED_CHUNKS * chunk))
    return tuple(needs)


def _kernel_available(root: Path) -> int | None:
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _control_groups(root: Path) -> list[int]:
    """Return what the limit of each control group of this process leaves (versions 1 and 2)."""
    left = []
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        base = root / "sys/fs/cgroup"
        if controllers == "":
            names = ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base, names = base / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        group = base / path.strip("/")
        # A container may see its own group as the root, regardless of the path.
        for folder in (group, *group.parents):
            if folder.is_relative_to(base):
                left += _left_in(folder, *names)
    return left


def _left_in(folder: Path, limit_name: str, usage_name: str, cache_name: str) -> list[int]:
    limit, usage = _lines(folder / limit_name), _lines(folder / usage_name)
    if not limit or not usage or limit[0] == "max":
        return []
    # The kernel reclaims unused file cache pages before an allocation fails.
    stat = dict(line.split()[:2] for line in _lines(folder / "memory.stat"))
    return [int(limit[0]) - int(usage[0]) + int(stat.get(cache_name, 0))]


def _address_space(root: Path) -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    statm = _lines(root / "proc/self/statm")
    if limit == resource.RLIM_INFINITY or not statm:
        return None
    return limit - int(statm[0].split()[0]) * resource.getpagesize()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _readable(count: int) -> str:
    """Format as GiB, MiB or KiB, to three digits."""
    unit = min(max(int(math.log2(max(count, 1)) // 10), 1), 4)
    return f"{count / 1024**unit:.3g} {' KMGT'[unit]}iB"
