"""The inputs of a model: rows of features, and of labels with label reuse, each with its operators."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import scipy.sparse as sp
from torch import Tensor

from model_store.features import FeatureMatrix
from model_store.graph import one_hot as one_hot
from model_store.operators import FeatureHops, LabelHops, Operators
from model_store.propagation import Propagator
from model_store.spec import ModelSpec


@dataclass(frozen=True, eq=False)
class Input:
    """One matrix of per-node rows (n, k), and how the blocks of the representation are made of it."""

    rows: FeatureMatrix
    operators: Operators

    def logits(self, W: Tensor) -> Tensor:
        """sum_b R_b X W_b for every node, (n, C), for W (k, blocks * C)."""
        return self.operators.forward(self.rows.matmul(W))


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

    def over(self, propagator: Propagator) -> "Inputs":
        """The same rows with operators over another set of live nodes and edges."""
        labels = self.labels
        if labels is not None:
            labels = replace(labels, operators=LabelHops(propagator, labels.operators.blocks))
        operators = self.features.operators
        if not isinstance(operators, FeatureHops):
            raise TypeError(f"{type(operators).__name__} cannot be rebuilt from a propagator alone")
        return Inputs(replace(self.features, operators=replace(operators, propagator=propagator)), labels)


def inputs_of(spec: ModelSpec, features: FeatureMatrix, labels: sp.csr_array, propagator: Propagator) -> Inputs:
    """The inputs that `spec` asks for: `features` (n, d), and `labels` (n, C) as `one_hot` makes them."""
    label_input = None
    if spec.label_hops:
        label_input = Input(FeatureMatrix(labels, propagator.device), LabelHops(propagator, spec.label_hops))
    return Inputs(Input(features, FeatureHops(propagator, spec.block_hops)), label_input)
