"""Two and four workers compute the same as one."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from projector.errors import WorkersLost
from projector.forgetting.certificate import certify
from projector.forgetting.coefficients import span_coefficients
from projector.network.spec import ClassWeight, Combine, LossKind, ModelSpec
from projector.parallel.distributed import Distributed
from projector.parallel.workers import ALONE, Workers, together
from projector.solvers.preconditioners import block_steps, factor_steps
from projector.training.fit import Problem, follow_training, train
from tests.support.everyday import everyday
from tests.support.mathematics.teams import in_team
from tests.support.models.small_graphs import GRAPHS, single_node

CONCAT = ModelSpec(combine=Combine.CONCAT, hops=3, self_loops=0.5, label_hops=2)
SPECS = {
    "softmax": ModelSpec(),
    "ovr": replace(CONCAT, loss=LossKind.OVR, class_weight=ClassWeight.BALANCED),
    "hinge": replace(CONCAT, loss=LossKind.HINGE, regularization=1e-3),
    "squared": replace(CONCAT, loss=LossKind.SQUARED, regularization=1e-3),
    "diffusion": ModelSpec(diffusion=True, loss=LossKind.OVR),
}
#: Least stored values of P from which workers divide it: always, or never here.
DIVIDED, WHOLE = 0, 1 << 23
#: A graph, a specification, and whether products use H itself.
Case = tuple[int, str, bool]
CASES: list[Case] = [
    (number, spec, dense)
    for number, graph in enumerate(GRAPHS)
    for spec in SPECS
    for dense in (False, True)
    # Adaptive diffusion needs a validation node.
    if spec != "diffusion" or graph is not single_node
]


def measured(case: Case, workers: Workers) -> dict[str, Any]:
    """Return everything computed by rows and columns, for one case."""
    graph, spec = GRAPHS[case[0]](), SPECS[case[1]]
    problem = Problem.of(spec, graph, "cpu", lambda _: None, workers)
    objective, classes = problem.objective, graph.num_classes
    random = torch.Generator().manual_seed(0)
    W, direction = torch.randn((2, problem.representation.columns, classes), generator=random, dtype=torch.float64)
    U = torch.randn((problem.representation.rows, classes), generator=random, dtype=torch.float64)
    point = objective.at(W)
    *_, blocks = block_steps(objective, point, objective)
    *_, whole = factor_steps(objective, point, objective)
    assert blocks is not None
    assert whole is not None
    return {
        "value": torch.tensor(point.value),
        "gradient": point.gradient,
        "hessian": objective.hessian(point)(direction),
        "dual": objective.dual(point),
        "identity": torch.tensor(objective.identity_error(W, U)),
        "bound": torch.tensor(certify(objective, point).bound),
        "logits": problem.representation.logits_at_first(W),
        "beta": torch.cat(span_coefficients(problem.representation, U)),
        "blocks": blocks.inverses,
        "whole": whole.solve(direction),
    }


def trained(case: Case, workers: Workers) -> dict[str, Any]:
    """Return the result of training."""
    found = train(SPECS[case[1]], GRAPHS[case[0]](), workers=workers)
    return {"weights": found.weights, "label weights": found.label_weights, "dual": found.dual, "logits": found.logits}


def by_all(
    workers: Workers, cases: list[Case], least_entries: int = DIVIDED
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Run each case, at the first worker. P is divided if it has at least `least_entries` values.

    Sweeps take one class at a time, so workers with fewer classes would take fewer.
    """
    found = []
    for case in cases:
        spec, graph = SPECS[case[1]], GRAPHS[case[0]]()
        with (
            patch("projector.training.fit.keeps_dense", lambda *_, dense=case[2]: dense),
            patch("projector.network.propagation.LEAST_ENTRIES", least_entries),
            patch("projector.network.inputs.SWEEP_BYTES", 1),
        ):
            if isinstance(workers, Distributed) and workers.rank:
                follow_training(spec, graph, workers)
                follow_training(spec, graph, workers)
                continue
            both = []
            for work in (measured, trained):
                both.append({name: value.numpy() for name, value in work(case, workers).items()})
                if isinstance(workers, Distributed):
                    workers.end()
            found.append((both[0], both[1]))
    return found


PRECONDITIONERS = ("blocks", "whole")
#: Each graph and each specification, with H and without.
FEW = CASES[::9]
TEAMS = [(2, FEW, WHOLE), (2, FEW, DIVIDED), (4, FEW, DIVIDED), (2, CASES, DIVIDED), (4, CASES, DIVIDED)]


@pytest.mark.ci
@pytest.mark.parametrize(("count", "cases", "least_entries"), everyday(TEAMS, (2, FEW, DIVIDED)))
def test_several_compute_what_one_does(count: int, cases: list[Case], least_entries: int, tmp_path: Path) -> None:
    by_several = in_team(count, tmp_path, by_all, cases, least_entries)
    for case, one, several in zip(cases, by_all(ALONE, cases), by_several, strict=True):
        for name, value in one[0].items():
            # Preconditioners use single precision where that suffices.
            error = 1e-12 if name not in PRECONDITIONERS else 1e-3 * float(np.abs(value).max())
            np.testing.assert_allclose(several[0][name], value, rtol=1e-12, atol=error, err_msg=f"{case}: {name}")
        for name, value in one[1].items():
            np.testing.assert_allclose(several[1][name], value, rtol=1e-9, atol=1e-9, err_msg=f"{case}: {name}")


class Failing:
    """The failures of workers."""

    def __init__(self, workers: Distributed) -> None:
        self.workers = workers

    @together
    def overflow(self) -> None:
        """Fail in a sum, in which all take part."""
        raise ArithmeticError(str(self.workers.sum(torch.full((1,), torch.inf))))

    @together
    def die(self) -> None:
        """Kill the second."""
        if self.workers.rank:
            os.kill(os.getpid(), signal.SIGKILL)
        self.workers.sum(torch.zeros(1))


def lost(workers: Distributed) -> bool:
    """Both fail alike and continue; then the second dies."""
    failing = Failing(workers)
    workers.knows(failing)
    if workers.rank:
        workers.follow()
    with pytest.raises(ArithmeticError):
        failing.overflow()
    workers.beat()
    with pytest.raises(WorkersLost, match="could not continue"):
        failing.die()
    # No worker is waited for again.
    with pytest.raises(WorkersLost, match="have lost one another"):
        workers.beat()
    return True


def test_workers_outlast_what_all_fail_in_but_not_a_death(tmp_path: Path) -> None:
    assert in_team(2, tmp_path, lost)
