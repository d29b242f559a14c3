"""Identifying deleted nodes: the filters against every candidate's own effect, and their results."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.attacks.black_box import BlackBox
from benchmarks.attacks.identification import matched_filter, neighbours
from benchmarks.attacks.knowledge import Known
from benchmarks.attacks.ranking import place
from benchmarks.baselines.protocol import Nodes
from benchmarks.baselines.retraining import Retraining
from projector.network.spec import LossKind
from tests.support.mathematics.attacks import SPECS, attacked, dense_hessian, leaked, predictions, probability

pytestmark = pytest.mark.ci

LOSSES = list(SPECS)
Matrix = NDArray[np.float64]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("case", ["random", "a zero row", "duplicated", "one row"])
def test_the_filter_is_the_cosine_to_what_each_deletion_would_do(loss: LossKind, case: str) -> None:
    spec = SPECS[loss]
    graph, known = attacked(spec)
    if case == "a zero row":
        known.H[known.candidates[0]] = 0.0
    if case == "duplicated":
        known.H[known.candidates[1]] = known.H[known.candidates[0]]
    if case == "one row":
        known = replace(known, candidates=known.candidates[:1])
    labels, rows, W = graph.labels[known.candidates], known.H[known.asked], known.W
    solve = np.linalg.inv(dense_hessian(rows, W, spec, coupled=False))
    random = np.random.default_rng(1)
    # All of one size, so that nothing is clipped.
    changes = random.choice([-1.0, 1.0], size=(known.asked.size, 3))
    seen = known.agreement(changes, labels)
    anyhow = known.agreement(changes, None)
    for index, node in enumerate(known.candidates):
        every = []
        for label in range(3):
            slopes = probability(known.H[[node]] @ W, spec)[0] - np.eye(3)[label]
            dW = (solve @ np.outer(known.H[node], slopes).ravel()).reshape(W.shape) / known.training
            effect = (predictions(rows @ (W + 1e-3 * dW), spec) - predictions(rows @ (W - 1e-3 * dW), spec)) / 2e-3
            length = known.lengths[index, label]
            assert length == pytest.approx(np.linalg.norm(effect), rel=0.5)
            every.append((effect * changes).sum() / length if length else 0.0)
        assert seen[index] == pytest.approx(every[labels[index]], rel=1e-5, abs=1e-9)
        assert anyhow[index] == pytest.approx(max(every), rel=1e-5, abs=1e-9)
    if case == "duplicated":
        assert anyhow[0] == anyhow[1]


def only(known: Known, answers: Matrix) -> BlackBox:
    """Return a model that answers only about public nodes."""

    def asked(nodes: Nodes) -> Matrix:
        assert not np.isin(nodes, known.candidates).any()
        return answers[nodes]

    return asked


@pytest.mark.parametrize("loss", LOSSES)
def test_deletions_and_a_planted_leak_are_found_and_a_model_trained_anew_hides_everybody(loss: LossKind) -> None:
    spec = SPECS[loss]
    graph, known = attacked(spec, nodes=240, features=12)
    labels = graph.labels[known.candidates]
    fitted, ranks = Retraining(spec).fit(graph), []
    for index, node in list(enumerate(known.candidates))[:12]:
        leak, anew = leaked(graph, spec, int(node))

        pairs = [(fitted, anew), (leak, anew), (anew, anew)]
        scores = [matched_filter(only(known, a.predict()), only(known, b.predict()), known, labels) for a, b in pairs]
        beside = neighbours(only(known, fitted.predict()), only(known, anew.predict()), known)
        ranks.append([*(place(each, index) for each in scores), place(beside, index)])
    deletion, leak_, nothing, near = np.median(ranks, axis=0)
    middle = (known.candidates.size - 1) / 2
    assert nothing == middle
    assert deletion < 0.2 * middle
    assert leak_ < 0.3 * middle
    assert near < 0.5 * middle
