"""Who rehearses sees what training without the nodes would show, and knows when answers tell nothing."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.attacks.black_box import recorded
from benchmarks.attacks.reconstruction import nearest
from benchmarks.attacks.rehearsal import Rehearsal, Rehearsed
from benchmarks.baselines.linear import remaining, train_linear
from projector.network.spec import LossKind
from tests.support.mathematics.attacks import SPECS, attacked


@pytest.mark.parametrize("loss", list(SPECS))
def test_a_rehearsal_is_about_what_training_without_the_nodes_gives(loss: LossKind) -> None:
    graph, known = attacked(SPECS[loss], nodes=240, features=12)
    public = np.isin(np.arange(graph.nodes), known.public) & (graph.labels >= 0)
    nobody = np.zeros_like(public)
    theirs = replace(graph, train_mask=public, val_mask=nobody, test_mask=nobody)
    known = replace(known, training=int(public.sum()))
    rehearsal = Rehearsal.drawn(graph, known, 3, np.random.default_rng(0))
    assert public[rehearsal.nodes].all()
    assert not rehearsal.after[rehearsal.nodes].any()
    np.testing.assert_allclose(rehearsal.before, train_linear(theirs, known.spec).predict(), atol=1e-7)
    others = np.setdiff1d(known.public, rehearsal.nodes)
    anew = train_linear(remaining(theirs, rehearsal.nodes), known.spec).predict()[others]
    change = np.linalg.norm(anew - rehearsal.before[others])
    # Of a softmax the step is coarser: its Hessian is taken class by class.
    assert np.linalg.norm(anew - rehearsal.after[others]) < (0.6 if loss is LossKind.SOFTMAX else 0.3) * change


def test_what_is_learned_is_what_comes_nearest() -> None:
    """Of rehearsals in which the weights alone change, and so their answers tell the row: the guess is believed."""
    _, known = attacked(SPECS[LossKind.OVR], nodes=240, features=12)
    before, rehearsals = known.answers, []
    for node in known.public[:8]:
        W = known.W + 1e-3 * np.outer(known.hessian.solve(known.H[[node]].T @ np.ones((1, 3)))[:, 0], [1.0, -1.0, 0.0])
        after = replace(known, W=W).answers
        after[node] = 0.0
        rehearsals.append(Rehearsal(np.array([node]), before, after))
    learned = Rehearsed.by(rehearsals, known, None)
    assert (learned.steps, learned.share) == (8, 1.0)
    assert Rehearsed.by(rehearsals, known, 1).share < 1.0
    one = rehearsals[0]
    assert nearest(learned.row(recorded(one.before), recorded(one.after), known), known.H[one.nodes]) > 0.9
