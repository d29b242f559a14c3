"""The representation H of training nodes as an operator: H = S [P^h X, one block per hop h].

Letters: X (n, d) features, P (n, n) propagation, S (n_train, n) selects the training rows, W (blocks, d, C) weights.
H is dense even where X and P are sparse, so products with it go through the factors. On two cores that was 2 to 40
times faster than through H itself (Cora, Citeseer, Pubmed, Amazon Photo), and 2 to 15 times faster than through the QR
factor of H in its row space (Cora and Citeseer, which have fewer training nodes than features).
"""

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from model_store.graph import Features
from model_store.propagation import Propagator, csr_tensor

#: Columns of X propagated at a time when H is materialised.
_CHUNK_COLUMNS = 512


class Representation:
    """H on a device, in float64."""

    def __init__(
        self, features: Features, propagator: Propagator, rows: NDArray[np.int64], block_hops: tuple[int, ...]
    ) -> None:
        """`rows` (n_train,) are the rows S selects; `block_hops` ascends."""
        self.propagator = propagator
        self.block_hops = block_hops
        self.num_features = features.shape[1]
        self._rows = torch.from_numpy(rows).to(propagator.device)
        if isinstance(features, np.ndarray):
            self._X = torch.from_numpy(features.astype(np.float64)).to(propagator.device)
            self._XT = self._X.T
        else:
            self._X = csr_tensor(features, propagator.device)
            self._XT = csr_tensor(sp.csr_array(features.T), propagator.device)

    @property
    def rows(self) -> int:
        """n_train."""
        return int(self._rows.shape[0])

    def all_logits(self, W: Tensor) -> Tensor:
        """[P^h X, …] W for every node, (n, C), by Horner's rule: propagates C columns instead of d."""
        blocks = {hop: W[block] for block, hop in enumerate(self.block_hops)}
        last = self.block_hops[-1]
        total = self._X @ blocks[last]
        for hop in range(last - 1, -1, -1):
            total = self.propagator.apply(total)
            if hop in blocks:
                total += self._X @ blocks[hop]
        return total

    def logits(self, W: Tensor) -> Tensor:
        """H W, (n_train, C)."""
        return self.all_logits(W)[self._rows]

    def transposed(self, R: Tensor) -> Tensor:
        """H^T R for R (n_train, C): (blocks, d, C)."""
        scattered = R.new_zeros((self.propagator.nodes, R.shape[1])).index_copy_(0, self._rows, R)
        blocks = []
        for hop in range(self.block_hops[-1] + 1):
            if hop:
                scattered = self.propagator.apply_transpose(scattered)
            if hop in self.block_hops:
                blocks.append(self._XT @ scattered)
        return torch.stack(blocks)

    def dense(self) -> Tensor:
        """H itself, (n_train, blocks * d); takes n_train * blocks * d * 8 bytes."""
        d = self.num_features
        H = torch.empty((self.rows, len(self.block_hops), d), dtype=torch.float64, device=self.propagator.device)
        for start in range(0, d, _CHUNK_COLUMNS):
            stop = min(start + _CHUNK_COLUMNS, d)
            # X E for columns E of the identity: the same product for dense and CSR features.
            columns = torch.zeros((d, stop - start), dtype=torch.float64, device=H.device)
            columns[torch.arange(start, stop), torch.arange(stop - start)] = 1.0
            for hop, propagated in enumerate(self.propagator.hops(self._X @ columns, self.block_hops[-1])):
                if hop in self.block_hops:
                    H[:, self.block_hops.index(hop), start:stop] = propagated[self._rows]
        return H.reshape(self.rows, -1)
