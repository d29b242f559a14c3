"""Two and four workers against one on real graphs.

Everything that a deletion computes without repair agrees to 1e-12: only the order of sums differs. A repair stops at
the first weights with a proven relative bound of 1e-8, and workers may stop at different ones. So repaired weights lie
within the sum of their bounds, 2e-8 relative; norms and probabilities follow them.

The class block that is compared uses all rows. Otherwise which rows are drawn depends on the number of workers.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from model_store.datasets.load import default_data_dirs, load_dataset
from model_store.errors import DatasetNotFound
from projector import Model, ModelSpec, Report, fit
from projector.forgetting.coefficients import span_coefficients
from projector.forgetting.optimum import stacked
from projector.forgetting.status import TOLERANCE, RepairStatus
from projector.graph.graph import Graph
from projector.network.spec import Combine
from projector.parallel.distributed import Distributed
from projector.parallel.workers import ALONE, Workers
from projector.solvers.preconditioners import drawn_for_classes
from projector.training.fit import follow_training, train
from projector.training.scaling import well_scaled
from tests.support.mathematics.teams import in_team, shared

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

#: Relative error of a sum in another order, and of what follows repaired weights.
ROUNDING, REPAIRED = 1e-12, 1e-6
#: Nodes to delete, half of them training nodes.
BATCH = 64
SPECS = {
    "cora": ModelSpec(),
    "amazon_photo": ModelSpec(combine=Combine.CONCAT, tolerance=1e-9),
    "ogbn_arxiv_llm": ModelSpec(combine=Combine.CONCAT, tolerance=1e-9),
}


@dataclass(frozen=True)
class Results:
    """What one group of workers computes."""

    #: Without repair, by name.
    unrepaired: dict[str, NDArray[np.float64]]
    #: Of training and of the repair: weights, and a bound on their distance to the optimum.
    weights: dict[str, tuple[NDArray[np.float64], float]]
    #: Probabilities after the repair.
    probabilities: NDArray[np.float64]
    #: Of the deletions without and with repair.
    reports: tuple[Report, Report]


def graph_called(name: str) -> Graph:
    """Return the dataset with the features as `fit` scales them. Raises DatasetNotFound."""
    graph = load_dataset(name, data_dirs=default_data_dirs(os.environ), download=None)
    return replace(graph, features=well_scaled(graph.features, np.ones(graph.nodes, dtype=np.bool_)).features)


def deleted_nodes(graph: Graph) -> NDArray[np.int64]:
    """Draw training nodes and others."""
    random = np.random.default_rng(0)
    groups = (np.flatnonzero(graph.train_mask), np.flatnonzero(~graph.train_mask))
    return np.concatenate([random.choice(group, BATCH // 2, replace=False) for group in groups])


def results(workers: Workers, name: str, weights: Path) -> Results | None:
    """Train, then delete nodes from the model with the given weights. Followers return None."""
    graph, spec = graph_called(name), SPECS[name]
    workers = ALONE if workers.count == 1 else workers
    if isinstance(workers, Distributed) and workers.rank:
        follow_training(spec, graph, workers)
        # Training at the optimum stops at once.
        shared(fit(graph, spec, weights=np.load(weights)), workers)
        workers.follow()
        with all_rows():
            workers.follow()
        return None
    with following(workers):
        trained = train(spec, graph, workers=workers)
    assert trained.certificate is not None
    model = shared(fit(graph, spec, weights=np.load(weights)), workers)
    nodes = deleted_nodes(graph)
    with following(workers):
        projected, without = model.update(remove_nodes=nodes, repair=False)
        values = unrepaired(projected, spec.regularization)
        repaired, report = model.update(remove_nodes=nodes)
        probabilities = repaired.predict()
    with following(workers), all_rows():
        values["class block"] = class_block(projected, spec.regularization)
    assert report.bound_after is not None
    bounds = {
        "trained": (trained.weights.numpy(), trained.certificate.bound),
        "repaired": (repaired.weights, report.bound_after.bound),
    }
    return Results(values, bounds, probabilities, (without, report))


@contextmanager
def following(workers: Workers) -> Iterator[None]:
    """Let the other workers follow this block."""
    yield
    if isinstance(workers, Distributed):
        workers.end()


@contextmanager
def all_rows() -> Iterator[None]:
    """Build class blocks from all rows, in double precision."""
    module = "projector.solvers.preconditioners"
    with patch(f"{module}._rows_drawn", lambda _: 1 << 20), patch(f"{module}._precision", lambda *_: torch.float64):
        yield


def unrepaired(model: Model, regularization: float) -> dict[str, NDArray[np.float64]]:
    """Return what is computed from the projected weights, including all that a repair uses."""
    held = model._held
    objective, W = held.training_rows.objective(regularization), stacked(held.state)
    point = objective.at(W)
    direction = torch.randn(W.shape, generator=torch.Generator().manual_seed(0), dtype=W.dtype)
    dual = objective.dual(point)
    (coefficients,) = span_coefficients(objective.representation, dual)
    found = {
        "weights": W,
        "value": torch.tensor(point.value),
        "gradient": point.gradient,
        "product with the Hessian": objective.hessian(point)(direction),
        "dual": dual,
        "coefficients": coefficients,
        "probabilities": torch.from_numpy(model.predict()),
    }
    return {name: value.numpy() for name, value in found.items()}


def class_block(model: Model, regularization: float) -> NDArray[np.float64]:
    """Return the first class block of the Hessian at the model's weights, (p, p)."""
    rows = model._held.training_rows
    objective = rows.objective(regularization)
    return drawn_for_classes(objective, objective.at(stacked(model._held.state)), rows).block(0).numpy()


def figures(report: Report, kind: type) -> dict[str, Any]:
    """Return the figures of a type, without times and steps, which depend on the workers."""
    return {
        name: value
        for name, value in vars(report).items()
        if type(value) is kind and name not in ("seconds", "iterations")
    }


@pytest.fixture(scope="module", params=list(SPECS))
def by_one(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Results]:
    """The name of a graph, the file of a model's weights, and the results of one worker."""
    name, folder = request.param, tmp_path_factory.mktemp("one")
    weights = folder / "weights.npy"
    try:
        graph = graph_called(name)
    except DatasetNotFound as error:
        pytest.skip(str(error))
    np.save(weights, fit(graph, SPECS[name]).weights)
    return name, weights, in_team(1, folder, results, name, weights)


@pytest.mark.parametrize("count", [2, 4])
def test_several_get_the_results_of_one(by_one: tuple[str, Path, Results], count: int, tmp_path: Path) -> None:
    name, weights, one = by_one
    several = in_team(count, tmp_path, results, name, weights)
    for what, value in one.unrepaired.items():
        assert np.abs(several.unrepaired[what] - value).max() <= ROUNDING * np.abs(value).max(), what
    for before, after, tolerance in zip(one.reports, several.reports, (ROUNDING, REPAIRED), strict=True):
        assert figures(after, int) == figures(before, int)
        assert figures(after, float) == pytest.approx(figures(before, float), rel=tolerance, abs=0.0)
        assert after.bound_before is not None
        assert before.bound_before is not None
        assert after.bound_before.bound == pytest.approx(before.bound_before.bound, rel=ROUNDING)
    for what, (W, bound) in one.weights.items():
        other, other_bound = several.weights[what]
        assert float(np.linalg.norm(other - W)) <= bound + other_bound, what
    for report in (one.reports[1], several.reports[1]):
        assert report.repair is RepairStatus.CONVERGED
        assert report.bound_after is not None
        assert report.bound_after.within(TOLERANCE)
    np.testing.assert_allclose(several.probabilities, one.probabilities, rtol=0.0, atol=REPAIRED)
