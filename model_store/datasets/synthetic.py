"""Synthetic graphs that resemble citation networks: homophilous, with sparse binary features."""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from projector.errors import GraphError
from projector.graph.raw_graph import RawGraph

PREFIX = "synthetic:"
#: About the size of Cora.
DEFAULT_SYNTHETIC = "synthetic:n=2708,d=1433,classes=7,seed=0"

_EDGES_PER_NODE = 2
#: Share of edges drawn within a class; the others are drawn from all nodes.
_HOMOPHILY = 0.7
_WORDS_PER_NODE = 24
#: Share of a node's words drawn from its class's own part of the vocabulary.
_TOPICAL = 0.3


@dataclass(frozen=True)
class SyntheticParameters:
    """The parameters of `synthetic:n=…,d=…,classes=…,seed=…`."""

    n: int
    d: int
    classes: int
    seed: int


def parse(source: str) -> SyntheticParameters:
    """Return the parameters in `synthetic:n=…,d=…,classes=…,seed=…`.

    Raises GraphError if one is missing, unknown or too small.
    """
    remedy = f"Write {PREFIX}n=…,d=…,classes=…,seed=…, for example {DEFAULT_SYNTHETIC}."
    least = {"n": 4, "d": 2, "classes": 2, "seed": 0}
    values: dict[str, int] = {}
    for part in source.removeprefix(PREFIX).split(","):
        name, _, text = part.strip().partition("=")
        if name not in least or name in values:
            raise GraphError(f"{source!r} has an unknown or repeated parameter {name!r}.", remedy)
        if not (text.isascii() and text.isdigit()):
            raise GraphError(f"{source!r}: {name} is {text!r}, not a whole number.", remedy)
        values[name] = int(text)
        if values[name] < least[name]:
            raise GraphError(f"{source!r}: {name} must be at least {least[name]}.", remedy)
    missing = [name for name in least if name not in values]
    if missing:
        raise GraphError(f"{source!r} lacks {', '.join(missing)}.", remedy)
    parameters = SyntheticParameters(**values)
    if parameters.n < 2 * parameters.classes or parameters.d < parameters.classes:
        raise GraphError(f"{source!r} has too few nodes or features for its classes.", remedy)
    return parameters


def generate(parameters: SyntheticParameters) -> RawGraph:
    """Return a stochastic block model whose nodes have words of a Zipf-like vocabulary, partly of their class's topic.

    As in real text, most words are rare: some occur on one node only. Every class has a node. Features are a CSR
    float32 matrix of zeros and ones. The same parameters give the same graph.
    """
    rng = np.random.default_rng(parameters.seed)
    labels = rng.permutation(np.arange(parameters.n) % parameters.classes).astype(np.int64)
    return RawGraph(
        origin="synthetic",
        edge_index=_edges(parameters, labels, rng),
        features=_features(parameters, labels, rng),
        labels=labels,
        masks=None,
        node_ids=None,
    )


def _edges(
    parameters: SyntheticParameters, labels: np.ndarray[tuple[int], np.dtype[np.int64]], rng: np.random.Generator
) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    count = _EDGES_PER_NODE * parameters.n
    by_class = np.argsort(labels, kind="stable")
    sizes = np.bincount(labels, minlength=parameters.classes)
    first = np.cumsum(sizes) - sizes
    left = rng.integers(parameters.n, size=count)
    own = labels[left]
    alike = by_class[first[own] + (rng.random(count) * sizes[own]).astype(np.int64)]
    right = np.where(rng.random(count) < _HOMOPHILY, alike, rng.integers(parameters.n, size=count))
    pairs = np.stack([np.minimum(left, right), np.maximum(left, right)])
    pairs = np.unique(pairs[:, left != right], axis=1)
    return np.concatenate([pairs, pairs[::-1]], axis=1)


def _features(
    parameters: SyntheticParameters, labels: np.ndarray[tuple[int], np.dtype[np.int64]], rng: np.random.Generator
) -> sp.csr_array:
    n, d, classes = parameters.n, parameters.d, parameters.classes
    words = max(1, min(_WORDS_PER_NODE, d // 4))
    rows = np.repeat(np.arange(n), words)
    # Log-uniform over the vocabulary: the k-th word is drawn about 1/k as often as the first.
    rank = float(d) ** (rng.random(rows.size) - 1.0)
    anywhere = (rank * d).astype(np.int64)
    # Word w belongs to the topic of class w mod classes.
    topic = labels[rows]
    topical = (rank * ((d - topic - 1) // classes + 1)).astype(np.int64) * classes + topic
    columns = np.where(rng.random(rows.size) < _TOPICAL, topical, anywhere)
    chosen = np.unique(rows * d + columns)
    shape = (n, d)
    return sp.csr_array(sp.coo_array((np.ones(chosen.size, dtype=np.float32), divmod(chosen, d)), shape=shape))
