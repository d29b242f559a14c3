"""GraphEraser: one model for each shard of the training graph, where a deletion retrains only the shards it touches.

Chen et al., "Graph Unlearning", CCS 2022. The training nodes are cut into shards (`partition`), and a model is trained
on the graph that each induces. Answers are means of the models' probabilities, or are weighted by importance learned on
training nodes: LBAggr, their Eq. 3, min over alpha >= 0 with sum 1 of mean cross-entropy(sum_i alpha_i p_i, y) +
|alpha|_2. The weight 1 of the norm and the thousand nodes are from their code. Their code applies two more softmaxes to
the sum before the cross-entropy and takes fifty epochs of Adam. Here the convex problem is solved.

Every model answers on the whole remaining graph. GraphEraser's code shows a shard's model only that shard and the test
nodes. The Projector paper's code shows it the whole graph, as here, but averages the shards' *weights*, where its text
says predictions. A deletion retrains only its own shard, or none if the node was not in training. The deleted node's
influence on other shards remains: on their cut and on the chosen epochs of their networks.

SISA (Bourtoule et al., "Machine Unlearning", IEEE S&P 2021) is the same with shards at random and a majority vote. An
answer is then the share of the models that vote for a class. Its slices are left out: they save time where training
passes over the rows one after another, and an optimum does not depend on them.

The Projector paper cuts all nodes and takes the training nodes of each part. Here the training graph is cut, as in
GraphEraser. A network keeps the epoch with "the highest validation score", and the paper does not say whose validation
nodes. Here it is, among every tenth epoch, the one that classifies those of the whole graph best.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.optimize import LinearConstraint, minimize

from benchmarks.baselines.linear import remaining, without_nodes
from benchmarks.baselines.partition import Partition
from benchmarks.baselines.protocol import Array, Nodes
from projector.graph.graph import Graph

#: Number of training nodes on which importance is learned, and the lower limit of a probability before its logarithm.
_SAMPLE, _LEAST = 1_000, 1e-12
#: A stream for that draw alone, separate from the draws of deleted nodes and of partitions.
_STREAM = 2


class Aggregator(StrEnum):
    """How the shards' answers are combined."""

    MEAN = "mean"
    LEARNED = "learned"
    VOTE = "vote"


class ShardModel(Protocol):
    """A model trained on a shard."""

    @property
    def weights(self) -> Array | None:
        """As `Trained.weights`."""

    def predict_on(self, graph: Graph) -> Array:
        """Class probabilities of every node of another graph with the same features, (n, C)."""


class ShardTrainer(Protocol):
    """Trains on a shard: `Retraining` or a `Network`."""

    def fit(self, graph: Graph, whole: Graph) -> ShardModel:
        """Train on the training nodes of `graph`, a part of the `whole`."""


@dataclass(frozen=True)
class GraphEraser:
    """Forgets by retraining the affected shards."""

    trainer: ShardTrainer
    partition: Partition
    aggregator: Aggregator = Aggregator.MEAN
    shards: int = 8
    seed: int = 0

    def fit(self, graph: Graph) -> "ErasedModel":
        """As `Baseline.fit`."""
        shard_of, models = _shards(replace(self, aggregator=Aggregator.MEAN), graph)
        everyone = np.ones(graph.nodes, dtype=np.bool_)
        return ErasedModel(self, graph, everyone, shard_of, models, self.importance(graph, models), ())

    def shard_model(self, graph: Graph, members: Nodes) -> ShardModel | None:
        """Train on the graph that `members` (m,) induce. Returns None without members."""
        return self.trainer.fit(induced(graph, members), graph) if members.size else None

    def aggregated(self, answers: Array) -> Array:
        """Return the part of a model's `answers` (n, C) that the aggregator uses: its vote, or all."""
        return np.eye(answers.shape[1])[answers.argmax(axis=1)] if self.aggregator is Aggregator.VOTE else answers

    def importance(self, graph: Graph, models: Sequence[ShardModel | None]) -> Array:
        """Return alpha, (shards,): 0 for empty shards, with sum 1."""
        filled = np.array([model is not None for model in models])
        alpha = np.where(filled, 1.0 / filled.sum(), 0.0)
        if self.aggregator is Aggregator.LEARNED:
            training = np.flatnonzero(graph.train_mask)
            size = min(_SAMPLE, training.size)
            sample = np.random.default_rng((self.seed, _STREAM)).choice(training, size=size, replace=False)
            alpha[filled] = learned_importance(
                np.stack([m.predict_on(graph)[sample, graph.labels[sample]] for m in models if m is not None])
            )
        return alpha


@lru_cache(maxsize=2)
def _shards(settings: GraphEraser, graph: Graph) -> tuple[Nodes, tuple[ShardModel | None, ...]]:
    """Return the shard of each node, (n,), and the models. Cached for erasers that differ only in the aggregator.

    The cache holds two graphs, as many as the injection test uses.
    """
    training = np.flatnonzero(graph.train_mask)
    shard_of = np.full(graph.nodes, -1, dtype=np.int64)
    shard_of[training] = settings.partition(induced(graph, training), settings.shards, settings.seed)
    members = (np.flatnonzero(shard_of == shard) for shard in range(settings.shards))
    return shard_of, tuple(settings.shard_model(graph, each) for each in members)


@dataclass(frozen=True, eq=False)
class ErasedModel:
    """The shards' models on the remaining graph."""

    settings: GraphEraser
    graph: Graph
    live: NDArray[np.bool_]
    #: The shard of each node, (n,); -1 outside training.
    shard_of: Nodes
    models: tuple[ShardModel | None, ...]
    #: alpha, (shards,).
    importance: Array
    #: The shards that the last deletion retrained.
    retrained: tuple[int, ...]

    @property
    def weights(self) -> Array | None:
        """The mean of the shards' weights, by importance: what the Projector paper's code predicts with.

        Answers here do not come from these weights. They serve to measure residual weight in a channel, and distances.
        """
        parts = [(a, m.weights) for a, m in zip(self.importance, self.models, strict=True) if m is not None]
        given = [a * W for a, W in parts if W is not None]
        return np.sum(given, axis=0) if given else None

    def predict(self) -> Array:
        """As `Trained.predict`."""
        return np.where(self.live[:, None], self.predict_on(self.graph), 0.0)

    def predict_on(self, graph: Graph) -> Array:
        """As `Trained.predict_on`."""
        models = zip(self.importance, self.models, strict=True)
        answers = [a * self.settings.aggregated(m.predict_on(graph)) for a, m in models if m is not None]
        return np.asarray(np.sum(answers, axis=0))

    def unlearn(self, nodes: Nodes) -> "ErasedModel":
        """Retrain the shards of `nodes` without them, and learn the importance again."""
        live, graph = without_nodes(self.live, nodes), remaining(self.graph, nodes)
        concerned = tuple(shard for shard in np.unique(self.shard_of[nodes]).tolist() if shard >= 0)
        shard_of = self.shard_of.copy()
        shard_of[nodes] = -1
        models = list(self.models)
        for shard in concerned:
            models[shard] = self.settings.shard_model(graph, np.flatnonzero(shard_of == shard))
        importance = self.settings.importance(graph, models)
        return ErasedModel(self.settings, graph, live, shard_of, tuple(models), importance, concerned)


def learned_importance(right: Array) -> Array:
    """Minimise mean(-log(alpha right)) + |alpha|_2 over alpha >= 0 with sum 1. Returns alpha, (shards,).

    `right` (shards, m) is the probability that each model gives to each node's true class.
    """

    def value(alpha: Array) -> tuple[float, Array]:
        mixed = np.maximum(alpha @ right, _LEAST)
        size = float(np.linalg.norm(alpha))
        return -float(np.log(mixed).mean()) + size, -(right / mixed).mean(axis=1) + alpha / size

    shards = len(right)
    found = minimize(
        value,
        np.full(shards, 1.0 / shards),
        jac=True,
        method="SLSQP",
        bounds=[(0.0, 1.0)] * shards,
        constraints=LinearConstraint(np.ones((1, shards)), 1.0, 1.0),
        options={"ftol": 1e-10},
    )
    alpha = np.maximum(found.x, 0.0)
    return np.asarray(alpha / alpha.sum())


def induced(graph: Graph, nodes: Nodes) -> Graph:
    """Return the graph of `nodes` (m,) and the edges between them, with all nodes in training."""
    adjacency = sp.csr_array(graph.adjacency[nodes][:, nodes])
    adjacency.sort_indices()
    nobody = np.zeros(nodes.size, dtype=np.bool_)
    return replace(
        graph,
        adjacency=adjacency,
        features=graph.features[nodes],
        labels=graph.labels[nodes],
        train_mask=~nobody,
        val_mask=nobody,
        test_mask=nobody,
        node_ids=graph.node_ids.take(nodes),
    )
