"""U-LiRA on every method: traces of unlearned nodes, as seen by one attacker for each node (`attacks.lira`).

A tenth of the training nodes are targets. Each model has nine tenths of the other training nodes, drawn for each model,
and a random half of the targets. It is trained on both, and unlearns those targets, 5 % of the training nodes, in one
request. The other half of the targets was never in its graph. The reference is trained on the same nine tenths without
any target. Models come in pairs with opposite halves, so that exactly half of the models unlearn each target. Exact
unlearning leaves weights that do not depend on the half, so the attacker cannot tell which it was.

Hayes et al. use images, not nodes, and leave these points open. The choices here:

* A deleted node has no answer on the remaining graph. The attacker knows its features and edges, and queries the
  weights about every target on the whole earlier graph, with all nodes and edges (`Trained.predict_on`), after
  unlearning as after retraining. A service that answers only on the remaining graph reveals less.
* There are two questions. "unlearned or retrained" is theirs: one model has unlearned the target, the other was
  retrained without it and has unlearned nothing. Any difference between the method's weights and retrained ones helps.
  "unlearned or never there": both models have unlearned 5 % by the method, with or without the target among them. Only
  traces of the node itself help.
* Methods that add noise draw it again for every model, as for the attacked one.
* A ridge regression is compared with the same regression retrained. GraphEditor keeps its first ridge when it forgets,
  so its retrained models have that ridge as well.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from benchmarks.attacks.black_box import recorded
from benchmarks.attacks.lira import Mask, attack, confidence
from benchmarks.baselines.catalogue import EDITOR_RETRAINING, FIELD, build, is_squared
from benchmarks.baselines.linear import remaining
from benchmarks.baselines.protocol import Array, Baseline, BaselineError, Nodes
from benchmarks.paper.forgetting.closeness import retraining_of
from benchmarks.paper.setting import ARXIV, spec_of
from benchmarks.paper.units import Cases, Unit
from projector import ModelSpec
from projector.graph.graph import Graph
from projector.network.spec import LossKind

RETRAINED_QUESTION, NEVER_THERE_QUESTION = "unlearned or retrained", "unlearned or never there"
#: Methods whose second-order step is defined for logistic regression alone.
ONE_AGAINST_REST = ("influence+", "influence+, authors' code", "fisher+", "fisher+, without noise")
_TARGETS, _TRAINED = 0.1, 0.9
#: Number of models; half of them teach the attackers about the others. Two graphs have fewer, for want of time.
_MODELS = 64
_FEWER = {"coauthor_cs": 16, ARXIV: 16}
#: A graph with at most this many nodes only tests that the attack runs, with this many models.
_SYNTHETIC, _TESTED = 1_000, 8
#: Graphs on which a method is attacked with its first loss only, for want of time.
_ONE_LOSS = ("amazon_photo", *_FEWER)


@dataclass(frozen=True, eq=False)
class Shadows:
    """Graphs that the models are trained on, the same for every method, and answers of the retrained models."""

    graph: Graph
    #: Ascending, (T,).
    targets: Nodes
    #: Targets that each model is trained on and unlearns, (K, T).
    members: Mask
    #: Each model's graph: without the other half of the targets, trained on its own half and on its other nodes.
    graphs: tuple[Graph, ...]
    #: Confidences of the models retrained without any target, (K, T).
    retrained: Array

    def unlearned(self, make: Callable[[int], Baseline]) -> Array:
        """Return confidences (K, T) of models that have unlearned their targets; `make` takes the model's number."""
        found = []
        for number, (member, graph) in enumerate(zip(self.members, self.graphs, strict=True)):
            left = make(number).fit(graph).unlearn(self.targets[member])
            found.append(_confidence(self.graph, left.predict_on(self.graph), self.targets))
        return np.stack(found)


def lira(graph: Graph, unit: Unit) -> Cases:
    """Yield, for each loss of the method and each question, figures with intervals, and the numbers of models and
    targets.
    """
    models = _TESTED if graph.nodes <= _SYNTHETIC else _FEWER.get(unit.dataset, _MODELS)
    for loss in losses_of(unit.method)[: 1 if unit.dataset in _ONE_LOSS else None]:
        spec = replace(spec_of(unit.dataset, unit.method), loss=loss)
        shadows = shadows_of(graph, spec, unit.seed, models, _TARGETS, retraining_of(unit.method))

        def make(number: int, spec: ModelSpec = spec) -> Baseline:
            return build(unit.method, spec, unit.seed * models + number, spec.regularization)

        unlearned = shadows.unlearned(make)
        by_question = {
            RETRAINED_QUESTION: np.where(shadows.members, unlearned, shadows.retrained),
            NEVER_THERE_QUESTION: unlearned,
        }
        for question, answers in by_question.items():
            yield (
                f"{loss}, {question}",
                {
                    "models": models,
                    "targets": shadows.targets.size,
                    "unlearned_at_once": shadows.targets.size / 2,
                    **{
                        name: value
                        for figure, found in attack(answers, shadows.members, unit.seed).items()
                        for name, value in (
                            (figure, found.value),
                            (f"{figure}_low", found.low),
                            (f"{figure}_high", found.high),
                        )
                    },
                },
            )


def losses_of(method: str) -> tuple[LossKind, ...]:
    """Return the losses that a method is attacked with."""
    if is_squared(method):
        return (LossKind.SQUARED,)
    if method in FIELD:
        return (LossKind.SOFTMAX,)
    return (LossKind.OVR,) if method in ONE_AGAINST_REST else (LossKind.OVR, LossKind.SOFTMAX)


@lru_cache(maxsize=2)
def shadows_of(
    graph: Graph, spec: ModelSpec, seed: int, models: int, share: float, retraining: str = "retraining"
) -> Shadows:
    """Draw targets, a `share` of the training nodes, for an even number of models, and record the answers of models
    retrained by the method `retraining`.

    Cached for both losses. Raises BaselineError if a graph has too few training nodes to draw targets from.
    """
    random = np.random.default_rng(seed)
    everyone = np.flatnonzero(graph.train_mask)
    half = round(share / 2 * everyone.size)
    if half == 0:
        raise BaselineError("There are too few training nodes to be targets.", "Take a larger graph or share.")
    targets = np.sort(random.choice(everyone, 2 * half, replace=False))
    others = np.setdiff1d(everyone, targets)
    members = np.zeros((models, targets.size), dtype=np.bool_)
    for first, second in members.reshape(models // 2, 2, targets.size):
        first[random.choice(targets.size, half, replace=False)] = True
        second[:] = ~first
    size = round(_TRAINED * others.size)
    training = tuple(np.sort(random.choice(others, size, replace=False)) for _ in range(models))
    left = remaining(graph, targets)
    # The ridge is lambda times the number of rows, of which the model that forgets had `half` more.
    factor = (size + half) / size if retraining == EDITOR_RETRAINING else 1.0
    trainer = build(retraining, spec, seed, factor * spec.regularization)
    models_without = (trainer.fit(_trained_on(left, nodes)) for nodes in training)
    retrained = [_confidence(graph, model.predict_on(graph), targets) for model in models_without]
    graphs = tuple(
        _trained_on(remaining(graph, targets[~member]), np.concatenate((nodes, targets[member])))
        for member, nodes in zip(members, training, strict=True)
    )
    return Shadows(graph, targets, members, graphs, np.stack(retrained))


def _trained_on(graph: Graph, nodes: Nodes) -> Graph:
    mask = np.zeros(graph.nodes, dtype=np.bool_)
    mask[nodes] = True
    return replace(graph, train_mask=mask)


def _confidence(graph: Graph, answers: Array | None, targets: Nodes) -> Array:
    """Return the confidences (T,) of `targets` (T,), from a model's answers (n, C) on the whole graph."""
    if answers is None:
        raise BaselineError("The method answers on its own graph alone.", "Leave out adaptive diffusion.")
    return confidence(recorded(answers), targets, graph.labels[targets])
