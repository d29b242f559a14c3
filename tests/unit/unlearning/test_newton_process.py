"""Newton's method in a process of its own: the same minimisation, and nothing lost when the process is."""

import logging
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from model_store.datasets import load_dataset
from model_store.features import FeatureMatrix
from model_store.graph import one_hot
from model_store.inputs import inputs_of
from model_store.losses import loss_of
from model_store.newton import Newton
from model_store.objective import Objective
from model_store.propagation import Propagator
from model_store.representation import Representation
from model_store.spec import Combine, LossKind, ModelSpec
from service.domain.states import RepairPolicy, RepairStatus, RequestKind
from service.unlearning import newton_process
from service.unlearning.batch import Removal
from service.unlearning.newton_process import NewtonProcess, RemoteNewton, pays
from service.unlearning.placement import Placement
from service.unlearning.repair import GOAL, stacked
from service.unlearning.resident import Resident
from tests.unit.unlearning.stored import StoredModel, built

#: Sparse rows, so that no factor of the Hessian is worth making, and weights enough.
CITATIONS = "synthetic:n=300,d=600,classes=4,seed=3"
ROOT = Path(newton_process.__file__).parents[2]


def objective_of(spec: ModelSpec) -> Objective:
    graph = load_dataset(CITATIONS, data_dirs=[])
    propagator = Propagator.build(graph.adjacency, spec.propagation, spec.self_loops)
    labels = one_hot(graph.labels, graph.train_mask, graph.num_classes)
    inputs = inputs_of(spec, FeatureMatrix(graph.features), labels, propagator)
    representation = Representation(inputs, np.flatnonzero(graph.train_mask))
    y = torch.from_numpy(graph.labels[graph.train_mask])
    return Objective(representation, loss_of(spec.loss), y, spec.regularization)


def ready(process: NewtonProcess) -> NewtonProcess:
    deadline = time.monotonic() + 60
    while not process.start():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process


@pytest.fixture(scope="module")
def process() -> Iterator[NewtonProcess]:
    with NewtonProcess() as process:
        yield ready(process)


def test_it_minimises_as_newton_does_here(process: NewtonProcess) -> None:
    for spec in (
        ModelSpec(),
        ModelSpec(combine=Combine.CONCAT, hops=3, label_hops=3),
        ModelSpec(loss=LossKind.OVR, regularization=1e-3),
    ):
        objective = objective_of(spec)
        start = objective.at(torch.zeros((objective.representation.columns, 4), dtype=torch.float64))
        remote, local = process.minimisation(objective, start, 1e-9), Newton(objective, start.W, 1e-9)
        assert isinstance(remote, RemoteNewton)
        slices = 0
        while not remote.finished:
            remote.step(time.monotonic() + 0.01)
            slices += 1
        while not local.finished:
            local.step()
        assert remote.converged
        assert not remote.interrupted
        assert (remote.iterations, remote.products) == (local.iterations, local.products)
        assert torch.allclose(remote.best.W, local.best.W, rtol=1e-9, atol=1e-12)
        assert remote.best.relative_gradient <= 1e-9


def test_a_repair_is_left_to_it(process: NewtonProcess, tmp_path: Path) -> None:
    stored = StoredModel(tmp_path / "model", built(load_dataset(CITATIONS, data_dirs=[])), RepairPolicy.ALWAYS)
    alone = stored.resident
    helped = loaded(stored, process)
    removal = Removal(RequestKind.NODE, nodes=np.array([1, 2, 3]))
    here, there = alone.prepare([removal]), helped.prepare([removal])
    assert there.outcome.status is RepairStatus.CONVERGED
    assert there.outcome.products == here.outcome.products
    assert torch.allclose(stacked(there.state), stacked(here.state), rtol=1e-9, atol=1e-12)


def test_repairs_of_two_models_take_turns(process: NewtonProcess, tmp_path: Path) -> None:
    stored = StoredModel(tmp_path / "model", built(load_dataset(CITATIONS, data_dirs=[])), RepairPolicy.ALWAYS)
    waiting = [loaded(stored, process), loaded(stored, process)]
    for resident in waiting:
        resident.commit(resident.prepare([Removal(RequestKind.NODE, nodes=np.array([1, 2]))], budget_s=0.0))
    products = set()
    while waiting:
        resident = waiting.pop(0)
        repaired = resident.advance_repair(time.monotonic() + 0.005)
        if repaired is None:
            waiting.append(resident)
            continue
        assert repaired.outcome.status is RepairStatus.CONVERGED
        products.add(repaired.outcome.products)
    assert len(products) == 1, "neither began again"


def test_what_a_batch_overtakes_is_forgotten_there(
    process: NewtonProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = StoredModel(tmp_path / "model", built(load_dataset(CITATIONS, data_dirs=[])), RepairPolicy.ALWAYS)
    resident = loaded(stored, process)
    asked: list[float | None] = []
    ask = process.ask
    monkeypatch.setattr(process, "ask", lambda request: (asked.append(request.until), ask(request))[1])
    resident.commit(resident.prepare([Removal(RequestKind.NODE, nodes=np.array([1, 2]))], budget_s=0.0))
    begun(resident)
    assert None not in asked
    resident.commit(resident.prepare([Removal(RequestKind.NODE, nodes=np.array([5]))], budget_s=0.0))
    assert asked[-1] is None
    repaired = resident.advance_repair(math.inf)
    assert repaired is not None
    assert repaired.outcome.status is RepairStatus.CONVERGED


def test_it_forgets_what_has_ended_and_what_is_too_much() -> None:
    problems = newton_process._Problems()
    given = []
    for number in range(4):
        objective = objective_of(ModelSpec())
        given.append(objective.representation.inputs.features.rows)
        start = torch.zeros((600, 4), dtype=torch.float64)
        request = newton_process._Request(number, time.monotonic(), newton_process._Problem(objective, start, 1e-9))
        assert problems.answer(request) is not None
    rows = np.arange(given[0].nodes)
    assert [bool(each.dense_rows(rows).any()) for each in given] == [False, False, True, True]
    assert problems.answer(newton_process._Request(0, math.inf)) is None
    reached = problems.answer(newton_process._Request(2, math.inf))
    assert reached is not None
    assert reached.finished
    problems.answer(newton_process._Request(3, None))
    assert not any(each.dense_rows(rows).any() for each in given)


def test_it_ends_with_the_process_that_started_it() -> None:
    program = (
        "import time\n"
        "from service.unlearning.newton_process import NewtonProcess\n"
        "process = NewtonProcess()\n"
        "while not process.start(): time.sleep(0.01)\n"
        "print(process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    child.wait(30)


def test_it_is_for_quick_products_with_many_weights_on_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    representation = objective_of(ModelSpec()).representation
    assert pays(representation, 4)
    assert not pays(representation, 3), "1,800 weights"
    monkeypatch.setattr(newton_process, "_LARGEST_PRODUCT", 1000)
    assert not pays(representation, 4)
    with NewtonProcess() as process:
        objective = objective_of(ModelSpec())
        start = objective.at(torch.zeros((600, 4), dtype=torch.float64))
        assert isinstance(process.minimisation(objective, start, GOAL), Newton)
        assert process.pid is None


def test_a_repair_goes_on_without_it_when_it_is_killed(
    process: NewtonProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stored = StoredModel(tmp_path / "model", built(load_dataset(CITATIONS, data_dirs=[])), RepairPolicy.ALWAYS)
    resident = loaded(stored, process)
    resident.commit(resident.prepare([Removal(RequestKind.NODE, nodes=np.array([1, 2]))], budget_s=0.0))
    before = begun(resident)
    pid = process.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    with caplog.at_level(logging.WARNING):
        repaired = resident.advance_repair(math.inf)
    assert repaired is not None
    assert repaired.outcome.status is RepairStatus.CONVERGED
    assert (repaired.outcome.products or 0) > before
    assert "status -9" in caplog.text
    assert process.pid != pid, "the next repair has another"


def begun(resident: Resident) -> int:
    """Goes on with the repair until there were products; how many."""
    while True:
        assert resident.advance_repair(time.monotonic() + 0.001) is None
        assert resident.repairing is not None
        if resident.repairing.products:
            return resident.repairing.products


def loaded(stored: StoredModel, process: NewtonProcess) -> Resident:
    placement = Placement("cpu", RepairPolicy.ALWAYS, process)
    version = stored.store.read_version(stored.ref)
    return Resident.load(stored.store.manifest, stored.store.load_base(), version, stored.ref.version, placement)
