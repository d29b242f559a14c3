"""GraphSAINT's sampling: a GCN trained on small graphs that are drawn from the whole one, without bias.

Zeng et al., "GraphSAINT: Graph Sampling Based Inductive Learning Method", ICLR 2020. Each step draws nodes and runs the
whole network on the graph that they induce. With P = D^-1/2 (A + I) D^-1/2, p_v the probability that v is drawn and
p_uv that u and v both are:

* Random node sampler (their "Samplers"): n nodes are drawn with replacement, u with probability P(u) proportional to
  |P_:,u|^2. So p_v = 1 - (1 - P(v))^n and, for u != v, p_uv = 1 - (1 - P(u))^n - (1 - P(v))^n + (1 - P(u) - P(v))^n.
* Aggregator (their "Normalization"): sum over the u drawn of P_vu / alpha_uv x_u, with alpha_uv = p_uv / p_v. On
  average over the draws that contain v it is row v of P X.
* Loss (ibid.): sum over the training nodes v drawn of L_v / lambda_v, lambda_v = m p_v for m training nodes. Its
  expectation is the mean of the L_v, if these are as on the whole graph.

The paper counts draws beforehand to estimate alpha and lambda, since most of its samplers have no closed form; this one
has. The paper samples from the graph of training nodes alone. Here, as in torch-geometric's example, the sample is from
the whole graph, and training nodes have a loss. `GraphSAINTNodeSampler` of torch-geometric needs a package without
wheels, and samples nodes by degree. Nodes without edges and label, such as deleted ones, are never drawn. Predictions
use the whole graph.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, dropout

from benchmarks.baselines.linear import propagation
from benchmarks.baselines.nonlinear import Layers, Network, tensors
from benchmarks.baselines.protocol import Array, Nodes
from projector import ModelSpec
from projector.graph.graph import NO_LABEL, Graph

#: Draws in one sample, as a share of the nodes.
SHARE = 0.5


@dataclass(frozen=True, eq=False)
class NodeSampler:
    """Probabilities of the draws, and the normalisation that they require."""

    #: P(u), (n,).
    probabilities: Array
    #: Number of draws, with replacement.
    draws: int
    #: p_v, (n,).
    included: Array
    #: P_vu / alpha_uv, (n, n).
    aggregator: sp.csr_array

    @classmethod
    def of(cls, graph: Graph, draws: int) -> "NodeSampler":
        """Build the random node sampler of `draws` >= 2 draws; a single draw never contains a pair."""
        P = propagation(graph, ModelSpec())
        there = (np.diff(graph.adjacency.indptr) > 0) | (graph.labels != NO_LABEL)
        squares = np.where(there, np.asarray((P * P).sum(axis=0)).ravel(), 0.0)
        drawn = squares / squares.sum()

        def missed(probability: Array) -> Array:
            with np.errstate(divide="ignore"):
                return np.asarray(np.exp(draws * np.log1p(-np.minimum(probability, 1.0))))

        included, M = 1 - missed(drawn), P.tocoo()
        v, u = M.coords
        pairs = included[u] + included[v] - (1 - missed(drawn[u] + drawn[v]))
        both = np.where(u == v, included[v], pairs)
        values = np.divide(M.data * included[v], both, out=np.zeros_like(both), where=both > 0)
        return cls(drawn, draws, included, sp.csr_array((values, (v, u)), shape=P.shape))

    def draw(self, random: np.random.Generator) -> Nodes:
        """Draw the nodes of one sample, ascending."""
        return np.unique(random.choice(self.probabilities.size, self.draws, p=self.probabilities))


def on_sample(layers: Layers, x: Tensor, P: Tensor) -> Tensor:
    """Return logits, (m, C), of a GCN's layers on features (m, d), with P (m, m) in place of its own propagation."""
    hidden = layers.between(torch.sparse.mm(P, layers.first.lin(x)) + layers.first.bias)
    hidden = dropout(hidden, layers.share, layers.training)
    found: Tensor = torch.sparse.mm(P, layers.second.lin(hidden)) + layers.second.bias
    return found


@dataclass(frozen=True)
class SampledNetwork(Network):
    """A GCN trained by GraphSAINT. An epoch has as many samples as give one draw for each node."""

    def _losses(self, graph: Graph) -> Callable[[Layers], Iterator[Tensor]]:
        sampler = NodeSampler.of(graph, max(2, round(SHARE * graph.nodes)))
        random, (x, _) = np.random.default_rng(self.seed), tensors(graph, self.kind)
        training = int(graph.train_mask.sum())

        def sampled(layers: Layers) -> Iterator[Tensor]:
            for _ in range(round(1 / SHARE)):
                nodes = sampler.draw(random)
                inside = np.flatnonzero(graph.train_mask[nodes])
                logits = on_sample(layers, x.index_select(0, torch.from_numpy(nodes)), sample_of(sampler, nodes))
                losses = cross_entropy(
                    logits[torch.from_numpy(inside)], torch.from_numpy(graph.labels[nodes[inside]]), reduction="none"
                )
                rates = 1 / (training * sampler.included[nodes[inside]])
                yield (losses * torch.from_numpy(rates.astype(np.float32))).sum()

        return sampled


def sample_of(sampler: NodeSampler, nodes: Nodes) -> Tensor:
    """Return rows and columns `nodes` of the aggregator, (m, m) float32."""
    part = sampler.aggregator[nodes][:, nodes].tocoo()
    places = torch.from_numpy(np.stack(part.coords).astype(np.int64))
    values = torch.from_numpy(part.data.astype(np.float32))
    return torch.sparse_coo_tensor(places, values, part.shape, check_invariants=False)
