"""Membership inference before and after a deletion (the paper's Table 5), after Olatunji, Nejdl and Khosla (2021).

Nodes are split at random into the adversary's half and the victim's, each with the graph that it induces. Both train
the linear model on half of their nodes. From the adversary's model, a classifier learns which answers belong to nodes
that the model was trained on ("members"). It then classifies the victim's answers, before and after nine tenths of the
victim's training nodes are deleted.

The paper's text leaves these points open. The choices here:

* The adversary sees ("node representation") class probabilities, as in Olatunji et al. A linear model has no hidden
  layer.
* The classifier ("MLP") is theirs: two hidden layers of 100 and 50 rectified units, Glorot's initial weights, biases of
  0.01, Adam at 0.01, batches of 32, 100 epochs. Their code takes the cross-entropy of a softmax of the softmax; here it
  is that of the logits.
* The adversary trains on half of its side, as the victim does. Olatunji et al. train on all of one graph and query
  nodes of another; in the paper members and others share the victim's graph.
* After a deletion the victim answers about all nodes on the graph before. Deleted nodes are missing from any other, and
  so only the weights differ. Retraining uses the remaining graph.
* The last column, "V_train^before", has no definition. It cannot be the share of these nodes that is classified
  correctly: the columns before it give that (53.5 on Cora before, where it says 57.79). In the paper's figures it is
  within 1.6 points of the mean of the two columns beside it, the classifier's balanced accuracy on remaining nodes.
  That is reported here.
* The paper does not print how far either model is trained. Both are trained to the optimum, or as in the paper's
  other experiments: by descent that stops early. Nodes that are not trained on then choose rate and iteration.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.baselines.catalogue import build
from benchmarks.baselines.linear import LinearModel, logits, probabilities, train_linear
from benchmarks.baselines.protocol import Array, Nodes, Trained, accuracy
from benchmarks.paper.forgetting.early import STARTED, Stopped, spec_at, stopped, training
from benchmarks.paper.setting import spec_of
from benchmarks.paper.units import Cases, Figures, Unit
from projector import ModelSpec
from projector.graph.graph import Graph

#: Random splits in a unit; the paper's own figures deviate by 12 to 33 points.
_SPLITS = 10
_TRAINED, _DELETED = 0.5, 0.9
_HIDDEN, _EPOCHS, _BATCH, _RATE = (100, 50), 100, 32, 0.01


@dataclass(frozen=True, eq=False)
class Attack:
    """A classifier of answers (n, C): members or not."""

    layers: nn.Sequential

    @classmethod
    def learned(cls, answers: Array, members: NDArray[np.bool_], seed: int) -> "Attack":
        """Learn from the answers (n, C) of the attacker's own model, and the mask of its training nodes."""
        x, y = torch.from_numpy(answers.astype(np.float32)), torch.from_numpy(members.astype(np.int64))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            widths = (x.shape[1], *_HIDDEN)
            hidden = [part for a, b in zip(widths, _HIDDEN, strict=False) for part in (nn.Linear(a, b), nn.ReLU())]
            layers = nn.Sequential(*hidden, nn.Linear(_HIDDEN[-1], 2))
            for layer in layers:
                if isinstance(layer, nn.Linear):
                    nn.init.xavier_uniform_(layer.weight)
                    nn.init.constant_(layer.bias, 0.01)
            adam = torch.optim.Adam(layers.parameters(), _RATE)
            for _ in range(_EPOCHS):
                for batch in torch.split(torch.randperm(len(y)), _BATCH):
                    adam.zero_grad()
                    loss: Tensor = cross_entropy(layers(x[batch]), y[batch])
                    torch.autograd.backward(loss)
                    adam.step()
        return cls(layers)

    def members(self, answers: Array) -> NDArray[np.bool_]:
        """Return the predicted members, (n,)."""
        with torch.no_grad():
            found: NDArray[np.bool_] = self.layers(torch.from_numpy(answers.astype(np.float32))).argmax(1).numpy() == 1
        return found


@dataclass(frozen=True, eq=False)
class Split:
    """The victim's side, and the attack that the adversary learned on its own side."""

    #: Training nodes are the members. There are no validation or test nodes.
    victim: Graph
    deleted: Nodes
    attack: Attack


def membership(graph: Graph, unit: Unit) -> Cases:
    """Yield, for ten random splits, the classifier's accuracy on deleted, kept and never-trained nodes."""
    spec = spec_of(unit.dataset)
    method = build(unit.method, spec, unit.seed, spec.regularization)
    return _attacked(graph, unit, spec, train_linear, lambda victim: (method.fit(victim), {}))


def early_membership(graph: Graph, unit: Unit) -> Cases:
    """As `membership`, of models whose training stopped early."""
    spec = spec_at(unit.method)

    def fit(victim: Graph) -> tuple[Trained, Figures]:
        trained = _stopped(victim, spec)
        return STARTED[unit.method](trained), training(trained)

    return _attacked(graph, unit, spec, _stopped, fit)


def _attacked(
    graph: Graph,
    unit: Unit,
    spec: ModelSpec,
    train: Callable[[Graph, ModelSpec], LinearModel],
    fit: Callable[[Graph], tuple[Trained, Figures]],
) -> Cases:
    """Yield the figures of each split; the adversary's model is by `train`, the victim's by `fit` with its figures."""
    for number in range(_SPLITS):
        split = split_of(graph, spec, train, unit.seed, number)
        fitted, about = fit(split.victim)
        left = fitted.unlearn(split.deleted)
        yield (
            f"split {number}",
            {
                "nodes": split.deleted.size,
                **{
                    f"{figure}_{phase}": value
                    for phase, weights in (("before", fitted.weights), ("after", left.weights))
                    for figure, value in attack_figures(split, spec, weights).items()
                },
                **about,
            },
        )


def _stopped(side: Graph, spec: ModelSpec) -> Stopped:
    return stopped(replace(side, val_mask=~side.train_mask), spec)


def attack_figures(split: Split, spec: ModelSpec, weights: Array | None) -> Figures:
    """Return the classifier's accuracy on the victim's nodes, from the answers of `weights` (blocks, d, C)."""
    assert weights is not None
    answers = probabilities(logits(split.victim, spec, weights), spec.loss)
    members, kept = split.attack.members(answers), split.victim.train_mask.copy()
    kept[split.deleted] = False
    others = ~split.victim.train_mask
    staying = float(members[kept].mean()), float(1 - members[others].mean())
    return {
        "deleted": float(1 - members[split.deleted].mean()),
        "kept": staying[0],
        "others": staying[1],
        "balanced": sum(staying) / 2,
        "accuracy": accuracy(answers, split.victim, others),
    }


@lru_cache(maxsize=_SPLITS)
def split_of(
    graph: Graph, spec: ModelSpec, train: Callable[[Graph, ModelSpec], LinearModel], seed: int, number: int
) -> Split:
    """Return a random split, the same for every method."""
    random = np.random.default_rng((seed, number))
    order = random.permutation(np.flatnonzero(graph.labels >= 0))
    sides = [np.sort(each) for each in np.array_split(order, 2)]
    adversary, victim = (_side(graph, nodes, random) for nodes in sides)
    answers = train(adversary, spec).predict()
    training = np.flatnonzero(victim.train_mask)
    deleted = random.choice(training, min(round(_DELETED * training.size), training.size - 1), replace=False)
    # Seed and split number together give one seed for the classifier's weights and batches.
    return Split(victim, np.sort(deleted), Attack.learned(answers, adversary.train_mask, seed * _SPLITS + number))


def _side(graph: Graph, nodes: Nodes, random: np.random.Generator) -> Graph:
    """Return the graph that `nodes` (m,) induce, with half of them for training and none for validation or test."""
    adjacency = sp.csr_array(graph.adjacency[nodes][:, nodes])
    adjacency.sort_indices()
    training = np.zeros(nodes.size, dtype=np.bool_)
    training[random.choice(nodes.size, round(_TRAINED * nodes.size), replace=False)] = True
    nobody = np.zeros(nodes.size, dtype=np.bool_)
    return replace(
        graph,
        adjacency=adjacency,
        features=graph.features[nodes],
        labels=graph.labels[nodes],
        train_mask=training,
        val_mask=nobody,
        test_mask=nobody,
        node_ids=graph.node_ids.take(nodes),
    )
