"""Newton's method in a process of its own: the same minimisation, and nothing lost when the process is."""

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from model_store.datasets.load import load_dataset
from projector.forgetting.batch import Removal
from projector.forgetting.optimum import stacked
from projector.forgetting.status import TOLERANCE, RepairStatus
from projector.graph.features import FeatureMatrix
from projector.graph.graph import one_hot
from projector.network.inputs import inputs_of
from projector.network.losses import Softmax, loss_of
from projector.network.propagation import Propagator
from projector.network.representation import Representation
from projector.network.spec import Combine, LossKind, ModelSpec
from projector.solvers.newton import Newton
from projector.solvers.objective import Objective
from service.domain.states import RepairPolicy
from service.unlearning import newton_process
from service.unlearning.newton_process import NewtonProcess, RemoteNewton, pays
from service.unlearning.placement import Placement
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
        remote, local = process.minimisation(objective, start, 1e-9), Newton(objective, start, 1e-9)
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
    removal = Removal(nodes=np.array([1, 2, 3]))
    here, there = alone.prepare([removal]), helped.prepare([removal])
    assert there.outcome.status is RepairStatus.CONVERGED
    assert there.outcome.products == here.outcome.products
    assert torch.allclose(stacked(there.state), stacked(here.state), rtol=1e-9, atol=1e-12)


def test_a_repair_that_lost_its_place_begins_there_again(process: NewtonProcess, tmp_path: Path) -> None:
    resident = overtaken(tmp_path, process)
    begun(resident)
    withdrawn = resident.prepare([Removal(nodes=np.array([5]))], budget_s=0.01)
    assert withdrawn.outcome.status is RepairStatus.PENDING
    repaired = resident.advance_repair(math.inf)
    assert repaired is not None
    assert repaired.outcome.status is RepairStatus.CONVERGED


def test_every_batch_that_is_committed_has_it_forget_what_it_holds(
    process: NewtonProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resident = overtaken(tmp_path, process)
    sent: list[object] = []
    send = process._send
    monkeypatch.setattr(process, "_send", lambda request: (sent.append(request), send(request))[1])
    begun(resident)
    assert sent[-1] is not None
    resident.commit(resident.prepare([Removal(nodes=np.array([5]))], budget_s=0.0))
    assert sent[-1] is None
    resident.prepare([Removal(nodes=np.array([6]))], budget_s=0.01)
    resident.leave_repairs_to(process)
    assert sent[-1] is None


def test_it_overwrites_what_it_held() -> None:
    desk = newton_process._Desk()
    given: list[FeatureMatrix] = []

    def ask(number: int, until: float, *, begin: bool = False) -> newton_process._Reached | None:
        problem = None
        if begin:
            objective = objective_of(ModelSpec())
            given.append(objective.representation.inputs.features.rows)
            start = torch.zeros((600, 4), dtype=torch.float64)
            problem = newton_process._Problem(objective, start, 1e-9)
        return desk.work(newton_process._Request(number, until, problem))

    def held() -> list[bool]:
        return [bool(each.dense_rows(np.arange(each.nodes)).any()) for each in given]

    assert ask(0, time.monotonic(), begin=True) is not None
    assert held() == [True]
    assert ask(1, time.monotonic(), begin=True) is not None
    assert held() == [False, True], "another"
    assert ask(0, math.inf) is None
    reached = ask(1, math.inf)
    assert reached is not None
    assert reached.finished
    assert held() == [False, False], "at its end"
    ask(2, time.monotonic(), begin=True)
    desk.clear()
    assert held() == [False] * 3, "when told"
    assert ask(2, math.inf) is None


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
        assert isinstance(process.minimisation(objective, start, TOLERANCE / 2), Newton)
        assert process.pid is None


def test_a_repair_goes_on_without_it_when_it_is_killed(
    process: NewtonProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    resident = overtaken(tmp_path, process)
    before = begun(resident)
    pid = process.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    goes_on(resident, before)
    assert "ended with status -9" in caplog.text
    assert process.pid != pid, "the next repair has another"


class Unheard(Softmax):
    """Of a module that the process cannot import."""


def test_what_it_cannot_do_is_told_and_left_to_others(process: NewtonProcess, caplog: pytest.LogCaptureFixture) -> None:
    ready(process)
    objective = replace(objective_of(ModelSpec()), loss=Unheard())
    start = objective.at(torch.zeros((600, 4), dtype=torch.float64))
    remote = process.minimisation(objective, start, TOLERANCE / 2)
    assert isinstance(remote, RemoteNewton)
    remote.step(math.inf)
    assert remote.interrupted
    assert remote.best is start
    assert "ended with status 1 (_Failed(error='ModuleNotFoundError'))" in caplog.text


def test_a_repair_goes_on_without_it_when_it_is_stopped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newton_process, "_PATIENCE_S", 3.0)
    with NewtonProcess() as process:
        resident = overtaken(tmp_path, ready(process))
        before = begun(resident)
        pid = process.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        goes_on(resident, before)
        assert "does not answer" in caplog.text
        assert not psutil.pid_exists(pid)


def test_where_none_can_be_started_repairs_are_computed_here(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more_processes(*_: object, **__: object) -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", no_more_processes)
    with NewtonProcess() as process:
        goes_on(overtaken(tmp_path, process), 0)
    assert "was not started" in caplog.text


def test_it_is_told_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LETHE_ADMIN_KEY", "hush")
    monkeypatch.setenv("DATABASE_URL", "postgresql://hush")
    with NewtonProcess() as process:
        process.start()
        assert process.pid is not None
        environment = psutil.Process(process.pid).environ()
    assert "hush" not in " ".join(environment.values())
    assert environment["OMP_NUM_THREADS"] == "1"


def overtaken(folder: Path, process: NewtonProcess) -> Resident:
    """A model whose repair, of a batch that was committed without, is left to the process."""
    stored = StoredModel(folder / "model", built(load_dataset(CITATIONS, data_dirs=[])), RepairPolicy.ALWAYS)
    resident = loaded(stored, process)
    resident.commit(resident.prepare([Removal(nodes=np.array([1, 2]))], budget_s=0.0))
    return resident


def goes_on(resident: Resident, products: int) -> None:
    """The repair ends as it should, with more products than these."""
    repaired = resident.advance_repair(math.inf)
    assert repaired is not None
    assert repaired.outcome.status is RepairStatus.CONVERGED
    assert (repaired.outcome.products or 0) > products


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
