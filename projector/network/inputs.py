"""The inputs of a model: rows of features, and of labels under label reuse, each with its operators."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from projector.graph.features import FeatureMatrix
from projector.graph.graph import Features
from projector.network.blocks import by_block, side_by_side
from projector.network.diffusion import Diffusion, DiffusionHops
from projector.network.operators import FeatureHops, LabelHops, Operators, SharedSweep
from projector.network.propagation import Propagator
from projector.network.row_share import RowShare
from projector.network.spec import ModelSpec
from projector.parallel.workers import Workers

#: Memory limit of a sweep over all hops; larger sweeps run in parts.
SWEEP_BYTES = 1 << 28


@dataclass(frozen=True, eq=False)
class Input:
    """A matrix of per-node rows (n, k), with the operators that make the representation's blocks from it."""

    rows: FeatureMatrix
    operators: Operators
    #: Mask (n,) of the rows that count, read only; the others are zero regardless of what is stored. None: all count.
    kept: NDArray[np.bool_] | None = None

    def matmul(self, right: Tensor) -> Tensor:
        """Return X @ right, (n, c) float64, for `right` (k, c) float64."""
        if not right.shape[1]:
            return right.new_empty((self.rows.nodes, 0))
        product = self.rows.matmul(right)
        return product if self._mask is None else product.mul_(self._mask)

    def columns(self, start: int, stop: int) -> Tensor:
        """Return X[:, start:stop], (n, stop - start) float64."""
        columns = self.rows.dense_columns(start, stop)
        return columns if self._mask is None else columns.mul_(self._mask)

    def transposed_matmul(self, right: Tensor) -> Tensor:
        """Return X^T right, (k, c) float64, for `right` (n, c) float64."""
        return self.rows.transposed_matmul(right if self._mask is None else right * self._mask)

    def row_norms(self) -> Tensor:
        """Return |x_j| of every row, (n, 1) float64."""
        norms = self.rows.row_norms[:, None]
        return norms if self._mask is None else norms * self._mask

    @property
    def uncancelled(self) -> Operators:
        """Operators that bound rounding: entrywise at least as large, since terms of the actual ones may cancel."""
        return self.operators.powers if isinstance(self.operators, LabelHops) else self.operators

    def without(self, rows: NDArray[np.int64], operators: Operators) -> "Input":
        """Return the input without `rows` (m,), with the operators of the remaining graph."""
        kept = np.ones(self.rows.nodes, dtype=np.bool_) if self.kept is None else self.kept.copy()
        kept[rows] = False
        return Input(self.rows, operators, kept)

    @cached_property
    def _mask(self) -> Tensor | None:
        """`kept` as (n, 1) float64 on the device."""
        if self.kept is None:
            return None
        return torch.from_numpy(self.kept).to(self.rows.device, torch.float64)[:, None]


@dataclass(frozen=True, eq=False)
class Inputs:
    """All inputs of a model."""

    features: Input
    #: None without label reuse.
    labels: Input | None

    def __iter__(self) -> Iterator[Input]:
        yield self.features
        if self.labels is not None:
            yield self.labels

    def logits(self, weights: Sequence[Tensor]) -> Tensor:
        """Return the sum of R_b X W_b over the blocks of all inputs, for every node, (n, C).

        `weights` has one (k, blocks * C) per input. Processes some classes at a time if memory
        requires it.
        """
        classes, width = weights[0].shape[1] // self.features.operators.blocks, self.width
        # Workers that multiply together need the same number of sweeps.
        most = classes if self.share is None else self.share.widest(classes, weights[0].device)
        if most <= width:
            return self._logits(weights)
        out = weights[0].new_empty((self.features.rows.nodes, classes))
        for start in range(0, most, width):
            part = slice(start, start + width)
            blocks = [by_block(W, classes)[:, :, part] if classes else W[None] for W in weights]
            out[:, part] = self._logits([side_by_side(each) for each in blocks])
        return out

    def _logits(self, weights: Sequence[Tensor]) -> Tensor:
        features, *labels = (each.matmul(W) for each, W in zip(self, weights, strict=True))
        if self.labels is None:
            return self.features.operators.forward(features)
        if (sweep := self._shared_sweep()) is not None:
            return sweep.forward(features, labels[0])
        return self.features.operators.forward(features).add_(self.labels.operators.forward(labels[0]))

    def adjoint(self, R: Tensor) -> list[Tensor]:
        """Return [R_b^T R]_b for each input, (n, blocks * C), for R (n, C)."""
        if (sweep := self._shared_sweep()) is not None:
            return list(sweep.adjoint(R))
        return [each.operators.adjoint(R) for each in self]

    @property
    def width(self) -> int:
        """Number of classes per sweep that keeps within `SWEEP_BYTES`."""
        blocks = sum(each.operators.blocks for each in self)
        return int(max(1, SWEEP_BYTES // (8 * self.features.rows.nodes * blocks)))

    def _shared_sweep(self) -> SharedSweep | None:
        """Return one sweep for both inputs if powers of the same P propagate both."""
        features, labels = self.features.operators, None if self.labels is None else self.labels.operators
        if (
            isinstance(features, FeatureHops)
            and isinstance(labels, LabelHops)
            and features.propagator is labels.propagator
        ):
            return SharedSweep(features, labels)
        return None

    @property
    def share(self) -> RowShare | None:
        """This worker's part of the rows of P, if it is divided."""
        operators = self.features.operators
        return operators.propagator.share if isinstance(operators, FeatureHops) else None

    def divided(self, propagator: Propagator, workers: Workers) -> tuple["Inputs", Propagator]:
        """Return these inputs and `propagator`, their P, divided among `workers` if P is large.

        Every worker holds all of an adaptive diffusion.
        """
        if isinstance(self.features.operators, DiffusionHops):
            return self, propagator
        propagator = propagator.divided(workers)
        features, *labels = (replace(each, operators=_with_propagator(each.operators, propagator)) for each in self)
        return Inputs(features, labels[0] if labels else None), propagator

    @property
    def read_labels(self) -> bool:
        """Whether labels of training nodes enter the representation."""
        return self.labels is not None or isinstance(self.features.operators, DiffusionHops)

    def without(
        self,
        nodes: NDArray[np.int64],
        edges: NDArray[np.int64],
        feature_rows: NDArray[np.int64],
        label_rows: NDArray[np.int64],
        propagator: Propagator,
    ) -> "Inputs":
        """Return the inputs of the graph without `nodes` (m,), `edges` (k, 2), and other nodes' features and labels.

        These are `feature_rows` (l,) and `label_rows` (r,). `propagator` belongs to the remaining graph.
        """
        leaving = (nodes, edges, feature_rows, label_rows)
        operators = _without(self.features.operators, *leaving, propagator)
        features = self.features.without(np.concatenate([nodes, feature_rows]), operators)
        if self.labels is None:
            return Inputs(features, None)
        operators = _without(self.labels.operators, *leaving, propagator)
        return Inputs(features, self.labels.without(np.concatenate([nodes, label_rows]), operators))

    def with_rows(
        self, rows: NDArray[np.int64], values: Features, labels: sp.csr_array, propagator: Propagator
    ) -> "Inputs":
        """Return the inputs of a graph in which `rows` (m,), new nodes or nodes without features, get `values` (m, d).

        `labels` (n, C) are those of that graph, from `one_hot`, and `propagator` is its P. The parameters of adaptive
        diffusion stay.
        """
        matrix, kept = self.features.rows.with_rows(rows, values), self.features.kept
        if kept is not None:
            kept = np.concatenate([kept, np.ones(matrix.nodes - kept.size, dtype=np.bool_)])
            kept[rows] = True
        return self._of(matrix, kept, labels, propagator)

    def part(self, rows: NDArray[np.int64], labels: sp.csr_array, propagator: Propagator) -> "Inputs":
        """Return the inputs of the nodes `rows` (m,) alone; `labels` (m, C) and `propagator` are theirs."""
        kept = None if self.features.kept is None else self.features.kept[rows]
        return self._of(self.features.rows.part(rows), kept, labels, propagator)

    def _of(
        self, matrix: FeatureMatrix, kept: NDArray[np.bool_] | None, labels: sp.csr_array, propagator: Propagator
    ) -> "Inputs":
        """Return the inputs of another graph, with the same parameters."""
        operators = self.features.operators
        if isinstance(operators, DiffusionHops):
            operators = operators.rebuilt(matrix, labels, propagator.edges.adjacency, propagator.live, kept)
        else:
            operators = _with_propagator(operators, propagator)
        features = Input(matrix, operators, kept)
        if self.labels is None:
            return Inputs(features, None)
        label_rows = FeatureMatrix(labels, propagator.device)
        return Inputs(features, Input(label_rows, _with_propagator(self.labels.operators, propagator)))


def inputs_of(
    spec: ModelSpec,
    features: FeatureMatrix,
    labels: sp.csr_array,
    propagator: Propagator,
    diffusion: Diffusion | None = None,
    featured: NDArray[np.bool_] | None = None,
) -> Inputs:
    """Return the inputs that `spec` describes: `features` (n, d), and `labels` (n, C) from `one_hot`.

    `diffusion` is what adaptive diffusion has learned, if `spec` uses it. Features of nodes outside the mask `featured`
    (n,) count as zero.
    """
    return Inputs(
        Input(features, feature_operators(spec, features, labels, propagator, diffusion, featured), featured),
        label_input(spec, labels, propagator),
    )


def feature_operators(
    spec: ModelSpec,
    features: FeatureMatrix,
    labels: sp.csr_array,
    propagator: Propagator,
    diffusion: Diffusion | None,
    featured: NDArray[np.bool_] | None = None,
) -> FeatureHops | DiffusionHops:
    """Return the operators of the feature blocks of `spec`: powers of P, or adaptive diffusion."""
    if not spec.diffusion:
        return FeatureHops(propagator, spec.block_hops)
    if diffusion is None:
        raise ValueError("adaptive diffusion needs the sigmas that training learned")
    return DiffusionHops.build(
        features,
        labels,
        propagator.edges.adjacency,
        sigmas=diffusion,
        gamma=spec.gamma,
        block_hops=spec.block_hops,
        live=propagator.live,
        featured=featured,
    )


def label_input(spec: ModelSpec, labels: sp.csr_array, propagator: Propagator) -> Input | None:
    """Return the input of label reuse, if `spec` uses it."""
    if not spec.label_hops:
        return None
    return Input(FeatureMatrix(labels, propagator.device), LabelHops(propagator, spec.label_hops))


def _without(
    operators: Operators,
    nodes: NDArray[np.int64],
    edges: NDArray[np.int64],
    feature_rows: NDArray[np.int64],
    label_rows: NDArray[np.int64],
    propagator: Propagator,
) -> Operators:
    """Return the operators of an input over the remaining graph."""
    if isinstance(operators, DiffusionHops):
        return operators.without(nodes, edges, feature_rows, label_rows)
    return _with_propagator(operators, propagator)


def _with_propagator(operators: Operators, propagator: Propagator) -> Operators:
    if isinstance(operators, FeatureHops | LabelHops):
        return replace(operators, propagator=propagator)
    raise TypeError(f"{type(operators).__name__} cannot be taken to another graph")
