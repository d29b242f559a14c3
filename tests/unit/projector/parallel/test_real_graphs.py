"""Two and four workers against one on real graphs: what all compute to 1e-12, what is repaired as near as its bounds.

M, its pseudo-inverse and the projection are computed by the first worker alone, of the same model in all: what is
compared is that nothing of them comes to depend on the others. Gram matrices that are added up over the workers are
those of the Hessian's class blocks; of these all rows are taken, since which are drawn depends on how they are divided.
So may the steps of a repair: of its outcome only these, times and what its bounds leave open are not compared.
"""

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

from projector import ModelSpec, fit
from projector.forgetting.batch import Removal
from projector.forgetting.live_graph import LiveGraph
from projector.forgetting.optimum import stacked
from projector.forgetting.status import RepairStatus
from projector.forgetting.training_rows import TrainingRows
from projector.forgetting.update import RepairPlan, Updated, update
from projector.graph.graph import Graph
from projector.network.spec import Combine
from projector.parallel.distributed import Distributed
from projector.parallel.workers import ALONE, Workers
from projector.solvers.preconditioners import drawn_for_classes
from projector.training.fit import follow_training, train
from projector.training.scaling import well_scaled
from tests.support.everyday import everyday
from tests.support.mathematics.teams import in_team
from tests.support.models.stored import real_graph

#: Of two sums of the same numbers in another order.
SAME = 1e-12
BATCH = 32
CORA, FEW, PHOTO, ARXIV = "cora", "cora, a little of it", "amazon_photo", "ogbn_arxiv_llm"
SPECS = {
    CORA: ModelSpec(),
    FEW: ModelSpec(),
    PHOTO: ModelSpec(combine=Combine.CONCAT, tolerance=1e-9),
    ARXIV: ModelSpec(tolerance=1e-9),
}


def graph_called(name: str) -> Graph:
    """The dataset with its features as a model has them; for `FEW`, 60 of them and fewer training rows than workers."""
    graph = real_graph(name.partition(",")[0])
    if name == FEW:
        chosen = np.flatnonzero(graph.train_mask)[[5, 400, 401]]
        graph = replace(graph, train_mask=np.isin(np.arange(graph.nodes), chosen), features=graph.features[:, :60])
    return replace(graph, features=well_scaled(graph.features, np.ones(graph.nodes, dtype=np.bool_)).features)


@dataclass
class Found:
    """What a team has computed."""

    #: Compared to 1e-12.
    values: dict[str, Any]
    #: Of training, and of the repair of a batch: weights, and how far they can be from those that they stand for.
    weights: dict[str, tuple[NDArray[np.float64], float]]
    #: Compared as they are.
    figures: dict[str, Any]


@contextmanager
def all_rows() -> Iterator[None]:
    """Class blocks in double precision, and of all rows."""
    place = "projector.solvers.preconditioners"
    with patch(f"{place}._rows_drawn", lambda _: 1 << 20), patch(f"{place}._precision", lambda *_: torch.float64):
        yield


def computed(workers: Workers, name: str, weights: Path) -> Found | None:
    """Trains anew; deletes nodes from the model of those `weights`. None from a follower."""
    workers = ALONE if workers.count == 1 else workers
    graph, spec = graph_called(name), SPECS[name]
    if isinstance(workers, Distributed) and workers.rank:
        follow_training(spec, graph, workers)
        everyone = np.ones(graph.nodes, dtype=np.bool_)
        LiveGraph.of(graph, spec, None, live=everyone, featured=everyone, device="cpu").shared_by(workers)
        workers.follow()
        with all_rows():
            workers.follow()
        return None
    with followed(workers):
        trained = train(spec, graph, workers=workers)
    distance = trained.relative_gradient * float(torch.linalg.norm(trained.weights))
    model = fit(graph, spec, weights=np.load(weights))
    live_graph = model._held.live_graph.shared_by(workers)
    held = replace(model._held, live_graph=live_graph, training_rows=TrainingRows.of(live_graph))
    with followed(workers):
        projected, repaired = (update(held, [Removal(nodes=removed(graph))], plan) for plan in (None, RepairPlan()))
        values = of_projection(projected) | of_objective(projected, spec.regularization)
    with followed(workers), all_rows():
        values["class block"] = class_block(projected, spec.regularization)
    outcome, measured = repaired.outcome, repaired.projection
    assert outcome.after is not None
    return Found(
        values,
        {
            "trained": (trained.weights.numpy(), distance),
            "repaired": (stacked(repaired.state).numpy(), outcome.after.bound),
        },
        {
            "status": outcome.status, "tolerance": outcome.tolerance, "lost": measured.directions_removed,
            "without preconditioner": outcome.without_preconditioner, "method": measured.factor_method,
            "emptied": measured.emptied_columns, "live": repaired.state.live.tolist(),
        },
    )  # fmt: skip


@contextmanager
def followed(workers: Workers) -> Iterator[None]:
    """The others carry out what is done in here."""
    yield
    if isinstance(workers, Distributed):
        workers.end()


def removed(graph: Graph) -> NDArray[np.int64]:
    """Some nodes at random, and at most one in a hundred of those that are trained on."""
    random, training = np.random.default_rng(0), np.flatnonzero(graph.train_mask)
    others = random.choice(np.flatnonzero(~graph.train_mask), BATCH, replace=False)
    return np.concatenate([others, random.choice(training, min(BATCH, training.size // 100 + 1), replace=False)])


def of_projection(done: Updated) -> dict[str, Any]:
    """What the first computes by itself."""
    span, measured = done.state.features, done.projection
    figures = {each: value for each, value in vars(measured).items() if isinstance(value, float)}
    norms = {f"{each} norm": value for each, value in vars(measured.norms[0]).items() if value is not None}
    matrices = {"M": span.gram.M, "M+": span.gram.M_pinv, "W": span.W, "B": span.B, "T": span.T}
    return {name: matrix.numpy() for name, matrix in matrices.items()} | figures | norms


def of_objective(done: Updated, regularization: float) -> dict[str, Any]:
    """What all compute, of the projected weights on what remains."""
    objective, W, before = done.training_rows.objective(regularization), stacked(done.state), done.outcome.before
    point = objective.at(W)
    direction = torch.randn(W.shape, generator=torch.Generator().manual_seed(0), dtype=W.dtype)
    assert before is not None
    return {
        "value": point.value, "gradient": point.gradient.numpy(), "dual": objective.dual(point).numpy(),
        "product with the Hessian": objective.hessian(point)(direction).numpy(), "bound before": before.bound,
        "predictions": done.live_graph.probabilities(done.state),
    }  # fmt: skip


def class_block(done: Updated, regularization: float) -> Any:
    """That of the first class, added up over the workers."""
    objective = done.training_rows.objective(regularization)
    return drawn_for_classes(objective, objective.at(stacked(done.state)), done.training_rows).block(0).numpy()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", everyday([CORA, FEW, PHOTO, ARXIV], FEW))
def test_several_do_on_real_graphs_what_one_does(name: str, tmp_path: Path) -> None:
    graph, weights = graph_called(name), tmp_path / "weights.npy"
    np.save(weights, fit(graph, SPECS[name]).weights)
    found = []
    for count in (1, 4) if name == FEW else (1, 2, 4):
        (folder := tmp_path / str(count)).mkdir()
        found.append(in_team(count, folder, computed, name, weights))
    one, *several = found
    assert one.figures["status"] is RepairStatus.CONVERGED
    for each in several:
        assert each.figures == one.figures
        assert each.values.keys() == one.values.keys()
        for what, value in one.values.items():
            apart = np.abs(each.values[what] - value).max()
            assert apart <= SAME * np.abs(value).max(), f"{what}: {apart} of {np.abs(value).max()}"
        for what, (W, distance) in one.weights.items():
            other, its_distance = each.weights[what]
            assert float(np.linalg.norm(W - other)) <= distance + its_distance, what
