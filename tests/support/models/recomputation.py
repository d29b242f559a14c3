"""What any set of deletions must leave of a trained model, computed from the dataset without Lethe's own arithmetic."""

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
    """One trained model folder and the graph it was trained on."""

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
        """Mask (n,) of the nodes that are not in `deleted`."""
        mask = np.ones(self.graph.nodes, dtype=np.bool_)
        mask[[self.row[node] for node in deleted]] = False
        return mask

    def rank_without(self, deleted: Iterable[str]) -> int:
        """Rank of the surviving rows, by their singular values."""
        sigma = torch.linalg.svdvals(self._surviving(deleted))
        return int((sigma > self.cutoff).sum())

    def projected(self, deleted: Iterable[str]) -> NDArray[np.float64]:
        """W (d, C) projected on the span of the surviving rows, through their SVD."""
        _, sigma, right = torch.linalg.svd(self._surviving(deleted), full_matrices=False)
        basis = right[sigma > self.cutoff].numpy()
        projected: NDArray[np.float64] = basis.T @ (basis @ self.W)
        return projected

    def weights(self, deleted: Iterable[str]) -> NDArray[np.float64]:
        """`projected`, computed once for each rank: of deletions that follow each other only a lost direction matters.

        For sets of deleted nodes of which each holds the one before.
        """
        deleted = list(deleted)
        rank = self.rank_without(deleted)
        if rank not in self._by_rank:
            self._by_rank[rank] = self.projected(deleted)
        return self._by_rank[rank]

    def probabilities(self, deleted: Iterable[str], W: NDArray[np.float64]) -> NDArray[np.float64]:
        """Class probabilities (n, C) under `W` on the graph of the remaining nodes; zero for those deleted."""
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
        """Largest difference between the answers and `probabilities` (n, C)."""
        rows = [self.row[one.node] for one in predictions]
        names = self.graph.class_names
        answered = np.array([[one.probabilities[name] for name in names] for one in predictions])
        assert [one.label for one in predictions] == [names[best] for best in answered.argmax(axis=1)]
        return float(np.abs(answered - probabilities[rows]).max())

    def assert_predictions(self, answer: Predictions, deleted: Iterable[str]) -> None:
        """The answer is that of the graph without `deleted`, by the weights without them, to 1e-9."""
        deleted = set(deleted)
        assert set(answer.deleted) <= deleted
        assert not answer.unknown
        assert deleted.isdisjoint(one.node for one in answer.predictions)
        probabilities = self.probabilities(deleted, self.projected(deleted))
        assert self.error(answer.predictions, probabilities) <= 1e-9

    def _surviving(self, deleted: Iterable[str]) -> torch.Tensor:
        return torch.from_numpy(self.X[self.live(deleted)].toarray())

    def nodes(self, mask: NDArray[np.bool_]) -> list[str]:
        """The ids of the nodes in `mask` (n,)."""
        return [self.graph.node_ids[row] for row in np.flatnonzero(mask)]

    def accuracy(self, answer: Predictions) -> float:
        """Share of the answered nodes whose label is right."""
        names = self.graph.class_names
        right = [one.label == names[self.graph.labels[self.row[one.node]]] for one in answer.predictions]
        return float(np.mean(right))
