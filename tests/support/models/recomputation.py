"""The expected model after any set of deletions, computed from the dataset without Lethe's own arithmetic."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from lethe_client.results import NodePrediction, Prediction, Predictions
from projector.graph.graph import Graph
from tests.support.processes.lethe_process import figures_of, weights_on_disk


class Recomputation:
    """One trained model folder and its training graph."""

    def __init__(self, model: Path, graph: Graph) -> None:
        figures = figures_of(model)
        spec = figures["spec"]
        expected = {"propagation": "sym", "self_loops": 1.0, "combine": "last", "loss": "softmax"}
        assert {name: spec[name] for name in expected} == expected
        assert figures["column_scale"] is None
        self.graph = graph
        self.hops = int(spec["hops"])
        self.row = {node: row for row, node in enumerate(graph.node_ids)}
        self.X: sp.csr_array = sp.csr_array(graph.features).astype(np.float64)
        self.W: NDArray[np.float64] = weights_on_disk(model)[0]
        self.cutoff = float(np.sqrt(figures["rank_tolerance"] * figures["sigma_ref_squared"]))
        self.rank = int(figures["rank"])
        self._by_rank: dict[int, NDArray[np.float64]] = {self.rank: self.W}

    def live(self, deleted: Iterable[str]) -> NDArray[np.bool_]:
        """Return a mask (n,) of the nodes that are not in `deleted`."""
        mask = np.ones(self.graph.nodes, dtype=np.bool_)
        mask[[self.row[node] for node in deleted]] = False
        return mask

    def rank_without(self, deleted: Iterable[str]) -> int:
        """Return the rank of the surviving rows, by their singular values."""
        sigma = torch.linalg.svdvals(self._surviving(deleted))
        return int((sigma > self.cutoff).sum())

    def projected(self, deleted: Iterable[str]) -> NDArray[np.float64]:
        """Return W (d, C) projected on the span of the surviving rows, through their SVD."""
        _, sigma, right = torch.linalg.svd(self._surviving(deleted), full_matrices=False)
        basis = right[sigma > self.cutoff].numpy()
        projected: NDArray[np.float64] = basis.T @ (basis @ self.W)
        return projected

    def weights(self, deleted: Iterable[str]) -> NDArray[np.float64]:
        """Return `projected`, computed once for each rank: in a sequence of deletions only a lost direction matters.

        Each set of deleted nodes must contain the one before.
        """
        deleted = list(deleted)
        rank = self.rank_without(deleted)
        if rank not in self._by_rank:
            self._by_rank[rank] = self.projected(deleted)
        return self._by_rank[rank]

    def probabilities(self, deleted: Iterable[str], W: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return class probabilities (n, C) under `W` on the graph of the remaining nodes; zero for deleted ones."""
        live = self.live(deleted)
        A = self.graph.adjacency[live][:, live] + sp.eye_array(int(live.sum()))
        scale = sp.diags_array(1.0 / np.sqrt(A.sum(axis=1)))
        logits = self.X[live] @ W
        for _ in range(self.hops):
            logits = scale @ (A @ (scale @ logits))
        exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities = np.zeros((self.graph.nodes, W.shape[1]))
        probabilities[live] = exponents / exponents.sum(axis=1, keepdims=True)
        return probabilities

    def error(self, predictions: Sequence[NodePrediction | Prediction], probabilities: NDArray[np.float64]) -> float:
        """Return the largest difference between the answers and `probabilities` (n, C)."""
        rows = [self.row[one.node] for one in predictions]
        names = self.graph.class_names
        answered = np.array([[one.probabilities[name] for name in names] for one in predictions])
        assert [one.label for one in predictions] == [names[best] for best in answered.argmax(axis=1)]
        return float(np.abs(answered - probabilities[rows]).max())

    def assert_predictions(self, answer: Predictions, deleted: Iterable[str]) -> None:
        """Check that the answer is that of the graph and weights without `deleted`, to 1e-9."""
        deleted = set(deleted)
        assert set(answer.deleted) <= deleted
        assert not answer.unknown
        assert deleted.isdisjoint(one.node for one in answer.predictions)
        probabilities = self.probabilities(deleted, self.projected(deleted))
        assert self.error(answer.predictions, probabilities) <= 1e-9

    def _surviving(self, deleted: Iterable[str]) -> torch.Tensor:
        return torch.from_numpy(self.X[self.live(deleted)].toarray())

    def nodes(self, mask: NDArray[np.bool_]) -> list[str]:
        """Return the ids of the nodes in `mask` (n,)."""
        return [self.graph.node_ids[row] for row in np.flatnonzero(mask)]

    def accuracy(self, answer: Predictions) -> float:
        """Return the share of answered nodes with the right label."""
        names = self.graph.class_names
        right = [one.label == names[self.graph.labels[self.row[one.node]]] for one in answer.predictions]
        return float(np.mean(right))
