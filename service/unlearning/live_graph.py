"""The graph of the live nodes and the predictions on it."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model_store.features import FeatureMatrix
from model_store.propagation import Propagator
from model_store.spec import ModelSpec
from service.unlearning.snapshot import Snapshot


@dataclass(frozen=True, eq=False)
class LiveGraph:
    """Propagation over the live nodes; deleting nodes gives a new one and leaves this one as it is."""

    spec: ModelSpec
    features: FeatureMatrix
    propagator: Propagator

    def without_nodes(self, rows: NDArray[np.int64]) -> "LiveGraph":
        """The graph in which `rows` (m,) have no edge, no degree and no prediction."""
        return LiveGraph(self.spec, self.features, self.propagator.without_nodes(rows))

    def logits(self, W: Tensor) -> Tensor:
        """H W for every node, (n, C), for W (blocks, d, C), by Horner's rule on class columns.

        P^L X W_L + … + X W_0 = P(P(X W_L) + X W_{L-1}) + …: propagates C columns instead of d.
        """
        block_of_hop = {hop: block for block, hop in enumerate(self.spec.block_hops)}
        total = self.features.matmul(W[block_of_hop[self.spec.hops]])
        for hop in range(self.spec.hops - 1, -1, -1):
            total = self.propagator.apply(total)
            if hop in block_of_hop:
                total = total + self.features.matmul(W[block_of_hop[hop]])
        return total

    def predictions(self, W: Tensor, version: int) -> Snapshot:
        """Class probabilities of every live node under W, as version `version`."""
        probabilities = torch.softmax(self.logits(W), dim=1).cpu().numpy()
        live = self.propagator.live
        probabilities[~live] = 0.0
        return Snapshot(version=version, probabilities=probabilities, live=live.copy())
