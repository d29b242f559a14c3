"""Deletions that end in the weights of retraining: immediately, later, overtaken, interrupted, and not at all."""

import errno
import os
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from model_store.build import build_model
from model_store.datasets.load import load_dataset
from model_store.store import Store
from projector.errors import DeviceError
from projector.forgetting import preconditioner
from projector.forgetting.repair import RepairRun
from projector.forgetting.status import RepairStatus
from projector.forgetting.update import NotFinite
from projector.network.spec import LossKind, ModelSpec, SolverKind
from service.errors import Unavailable
from service.settings import Settings
from service.unlearner.committed import Prepared, PreparedRepair
from service.unlearner.placement import RepairImpossible
from service.unlearner.repairer import RepairSteps
from service.unlearner.resident import PreconditionerCache, Resident
from service.unlearner.version_writer import VersionWriter
from tests.support.everyday import everyday
from tests.support.service.bodies import edge_body, features_body, node_body
from tests.support.service.db_harness import until
from tests.support.service.repair_world import Served, events, query, retrained
from tests.support.service.repairs import TOLERANCE, Gate, assert_retrained, crash, model_of, repaired
from tests.support.service.running import Lethe, ask, running

WAITED = "SELECT requests FROM versions WHERE cause = 'repair'"


async def test_a_repair_within_its_budget_is_part_of_the_batch(lethe: Lethe, small_model: Path) -> None:
    untouched = await model_of(lethe)
    assert (untouched["repair"], untouched["repair_progress"]) == ("none", None)
    assert untouched["distance_bound_relative"] <= 1e-8
    served = Served(lethe.settings.model_dir)

    accepted = await lethe.delete("12", "57")
    state = await lethe.completed(accepted)
    assert_retrained(state, version=1)
    assert state["explanation"].startswith("The projection changed nothing")
    audit = state["audit"]
    assert audit["weight_change"] == pytest.approx(audit["repair_weight_change"])
    assert audit["repair_weights_sha256"] == audit["weights_sha256_after"]
    assert audit["durations_ms"].keys() >= {"project", "repair", "write", "swap", "erase", "verify"}
    assert (await events(lethe.settings.database_url))[accepted["id"]] == ["applied", "repaired", "completed"]
    model = await model_of(lethe)
    assert (model["version"], model["repair"], model["guarantee"]) == (1, "converged", "retrained")
    assert model["distance_bound_relative"] == audit["distance_bound_after_relative"]
    wanted = retrained(small_model, nodes=["12", "57"])
    assert served.distance(wanted) <= TOLERANCE
    assert served.is_tidy()

    # The weights also forget an edge and features; the norms are exact again after the repair.
    edge = next(pair for pair in edges_of(small_model) if not {"12", "57", "3"} & set(pair))
    of_edge = await lethe.completed(await ask(lethe, edge_body(edge)))
    assert_retrained(of_edge, version=2)
    of_features = await lethe.completed(await ask(lethe, features_body("3")))
    assert_retrained(of_features, version=3)
    assert of_features["audit"]["injected_norm_before"] > 0
    wanted = retrained(small_model, nodes=["12", "57"], features=["3"], edges=[edge])
    assert served.distance(wanted) <= TOLERANCE

    metrics = await counted(lethe, 'lethe_repairs_total{process="unlearner",status="converged"} 3.0')
    assert 'lethe_repair_seconds_count{process="unlearner"} 3.0' in metrics
    assert 'lethe_repairs_not_converged_total{process="unlearner"} 0.0' in metrics


async def counted(lethe: Lethe, line: str) -> str:
    """Return the metrics once they contain `line`: a batch is counted after its requests are reported completed."""

    async def is_counted() -> bool:
        return line in await lethe.metrics()

    await until(is_counted)
    return await lethe.metrics()


def edges_of(model: Path) -> list[tuple[str, str]]:
    graph = Store.open(model).load_base().graph
    rows, columns = graph.adjacency.nonzero()
    return [(graph.node_ids[i], graph.node_ids[j]) for i, j in zip(rows, columns, strict=True)]


@pytest.mark.ci
async def test_a_repair_past_its_budget_goes_on_after_completed_and_commits_its_own_version(
    deferring: Settings, small_model: Path, gate: Gate
) -> None:
    served = Served(deferring.model_dir)
    async with running(deferring) as lethe:
        await until(lethe.is_ready)
        accepted = await lethe.delete("12", "57")
        pending = await lethe.completed(accepted)
        assert (pending["guarantee"], pending["repair"]) == ("span", "pending")
        assert (
            "The repair, which re-optimises the weights on the remaining graph, is under way: until it ends"
            in pending["explanation"]
        )
        audit = pending["audit"]
        assert audit["distance_bound_after"] == audit["distance_bound_before"] > 0
        assert (audit["repair_version"], audit["repair_iterations"]) == (None, None)
        assert (await events(deferring.database_url))[accepted["id"]] == ["applied", "completed"]
        model = await model_of(lethe)
        assert (model["version"], model["repair"], model["guarantee"]) == (1, "pending", "span")
        assert model["repair_progress"].keys() == {"iterations", "products", "distance_bound_relative"}
        assert model["distance_bound_relative"] == audit["distance_bound_after_relative"]
        wanted = retrained(small_model, nodes=["12", "57"])
        assert served.distance(wanted) > 1e-3
        before = (await lethe.client.get("/predict/3")).json()

        gate.is_open = True
        state = await repaired(lethe, accepted)
        assert_retrained(state, version=2)
        assert "The repair (model version 2) did the forgetting" in state["explanation"]
        assert (state["completed_at"], state["audit"]["model_version_after"]) == (pending["completed_at"], 1)
        assert state["audit"]["repair_weights_sha256"] != audit["weights_sha256_after"]
        assert (await events(deferring.database_url))[accepted["id"]] == ["applied", "completed", "repaired"]
        model = await model_of(lethe)
        assert (model["version"], model["repair"], model["guarantee"]) == (2, "converged", "retrained")
        assert (model["repair_progress"], model["span_residual"] < 1e-8) == (None, True)
        assert model["weights_sha256"] == state["audit"]["repair_weights_sha256"]
        after = (await lethe.client.get("/predict/3")).json()
        assert (after["model_version"], after["probabilities"] != before["probabilities"]) == (2, True)
        assert served.distance(wanted) <= TOLERANCE
        assert served.is_tidy()
        assert lethe.failures == []


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", [1e-9, 1e-6])
async def test_weights_count_as_retrained_by_the_tolerance_that_their_record_states(
    settings: Settings, deferring: Settings, small_model: Path, tolerance: float
) -> None:
    """Immediately and later; a record under one tolerance stays valid under another."""
    named = {"repair_tolerance": tolerance, "factor_age": 90.0}
    async with running(settings.model_copy(update=named)) as lethe:
        await until(lethe.is_ready)
        first = await lethe.delete("12")
        state = await lethe.completed(first)
        assert (state["guarantee"], state["audit"]["repair_tolerance"]) == ("retrained", tolerance)
        assert state["audit"]["distance_bound_after_relative"] <= tolerance
        assert state["audit"]["factor_age_s"] == 90.0
        assert "may stay in memory for up to 90 s after it. It is never written to disk" in state["explanation"]
        assert state["audit"]["span_residual"] < 1e-8
    async with running(deferring.model_copy(update={"factor_age": 0.0})) as lethe:
        await until(lethe.is_ready)
        later = await repaired(lethe, await lethe.delete("57"))
        assert (later["guarantee"], later["audit"]["repair_tolerance"]) == ("retrained", 1e-8)
        assert (later["audit"]["factor_age_s"], "in memory" in later["explanation"]) == (0.0, False)
        assert (await lethe.state(first))["audit"] == state["audit"]
    recorded = "SELECT repair_tolerance FROM versions WHERE cause = 'repair'"
    assert await query(settings.database_url, recorded) == [(1e-8,)]
    assert Served(settings.model_dir).distance(retrained(small_model, nodes=["12", "57"])) <= TOLERANCE


async def test_a_batch_overtakes_a_repair_which_then_ends_for_both(
    deferring: Settings, small_model: Path, gate: Gate
) -> None:
    async with running(deferring) as lethe:
        await until(lethe.is_ready)
        first, second = await lethe.delete("12"), await lethe.delete("57", "3")
        for accepted in (first, second):
            assert (await lethe.completed(accepted))["repair"] == "pending"
        gate.is_open = True
        for accepted in (first, second):
            state = await repaired(lethe, accepted)
            assert state["audit"]["repair_version"] == (await model_of(lethe))["version"]
        found = await events(lethe.settings.database_url)
        assert all(found[accepted["id"]] == ["applied", "completed", "repaired"] for accepted in (first, second))
        assert [count for (count,) in await query(deferring.database_url, WAITED)] == [2]
    assert Served(deferring.model_dir).distance(retrained(small_model, nodes=["12", "57", "3"])) <= TOLERANCE


@pytest.mark.slow
async def test_only_the_first_batch_of_a_stream_waits_for_a_budget_that_repairs_do_not_fit_into(
    settings: Settings, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets: list[float] = []
    original = Resident.prepare

    def prepare(self: Resident, *given: Any, budget_s: float) -> Prepared:
        budgets.append(budget_s)
        return original(self, *given, budget_s=budget_s)

    monkeypatch.setattr(Resident, "prepare", prepare)
    too_short = 1e-9
    async with running(settings.model_copy(update={"repair_budget": too_short})) as lethe:
        await until(lethe.is_ready)
        for node in ("12", "57"):
            assert (await lethe.completed(await lethe.delete(node)))["repair"] == "pending"
        accepted = await lethe.delete("3")
        await lethe.completed(accepted)
        gate.is_open = True
        await repaired(lethe, accepted)
        gate.is_open = False
        # None is in progress any more: the next one is retried.
        await lethe.completed(await lethe.delete("40"))
    assert budgets == [too_short, 0.0, 0.0, too_short]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("budget", "owner", "method"),
    everyday(
        [
            (5.0, Store, "write_beta"),
            (0.0, RepairSteps, "record"),
            (0.0, Resident, "commit_repair"),
            (0.0, Store, "write_beta"),
            (0.0, RepairSteps, "complete"),
        ],
        (0.0, Store, "write_beta"),
    ),
)
async def test_a_repair_that_a_crash_interrupts_is_finished_at_the_next_start(
    settings: Settings, small_model: Path, budget: float, owner: type, method: str
) -> None:
    """From the coefficients of a repair within its batch to the last record of a separate one."""
    interrupted = settings.model_copy(update={"repair_budget": budget})
    async with running(interrupted) as lethe:
        await until(lethe.is_ready)
        with pytest.MonkeyPatch.context() as patch, capture_logs():
            patch.setattr(owner, method, crash)
            accepted = await lethe.delete("12", "57")
            await until(lethe.has_failed)
    async with running(interrupted) as lethe:
        await until(lethe.is_ready)
        assert_retrained(await repaired(lethe, accepted), version=1 if budget else 2)
        found = await events(settings.database_url)
        assert sorted(found[accepted["id"]]) == ["applied", "completed", "repaired"]
        assert Served(settings.model_dir).is_tidy()
        # The coefficients are right: later requests have their norms, and their span is the disk's.
        again = await repaired(lethe, await lethe.delete("3"))
        assert again["audit"]["injected_norm_before"] > 0
        assert again["audit"]["span_residual"] < 1e-8
    assert Served(settings.model_dir).distance(retrained(small_model, nodes=["12", "57", "3"])) <= TOLERANCE


@pytest.mark.ci
async def test_turning_repair_off_ends_the_wait_without_a_repair(deferring: Settings, gate: Gate) -> None:
    async with running(deferring) as lethe:
        await until(lethe.is_ready)
        accepted = await lethe.delete("12", "57")
        await lethe.completed(accepted)
    async with running(deferring.model_copy(update={"repair": "never"})) as lethe:
        gate.is_open = True
        await until(lethe.is_ready)
        state = await repaired(lethe, accepted, status="none")
        assert state["guarantee"] == "span"
        assert state["explanation"].endswith("the operator turned repair off for this model.")
        assert (await events(deferring.database_url))[accepted["id"]] == ["applied", "completed", "not_repaired"]
        model = await model_of(lethe)
        assert (model["version"], model["repair"], model["repair_progress"]) == (1, "none", None)


@pytest.mark.ci
@pytest.mark.parametrize("budget", everyday([5.0, 0.0], 0.0))
async def test_a_repair_that_falls_short_is_recorded_and_so_is_the_later_one_that_covers_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, budget: float
) -> None:
    original = RepairRun.repaired

    def falls_short(self: RepairRun) -> Any:
        state, outcome = original(self)
        return state, replace(outcome, status=RepairStatus.NOT_CONVERGED, after=outcome.before)

    monkeypatch.setattr(RepairRun, "repaired", falls_short)
    async with running(settings.model_copy(update={"repair_budget": budget})) as lethe:
        await until(lethe.is_ready)
        accepted = await lethe.delete("12", "57")
        state = await repaired(lethe, accepted, status="not_converged")
        assert (state["status"], state["guarantee"]) == ("completed", "span")
        assert "The repair did not converge; an operator should investigate" in state["explanation"]
        assert "but at most" in state["explanation"]
        recorded = (await events(settings.database_url))[accepted["id"]]
        # The `applied` event has reported the result of a batch's own repair.
        assert sorted(recorded) == sorted(["applied", "completed", *([] if budget else ["not_repaired"])])
        assert (await model_of(lethe))["repair"] == "not_converged"
        await counted(lethe, 'lethe_repairs_not_converged_total{process="unlearner"} 1.0')
        monkeypatch.setattr(RepairRun, "repaired", original)
        assert_retrained(await repaired(lethe, await lethe.delete("3")), version=2 if budget else 4)
        # The weights are also those of retraining without the first request's nodes.
        state = await lethe.state(accepted)
        assert (state["repair"], state["guarantee"]) == ("converged", "retrained")
        assert state["audit"]["repair_version"] == (await model_of(lethe))["version"]
        assert "did not converge" not in state["explanation"]
        assert (await events(settings.database_url))[accepted["id"]] == [*recorded, "repaired"]
    assert Served(settings.model_dir).is_tidy()


@pytest.mark.ci
async def test_a_repair_that_cannot_be_computed_is_given_up_and_deletions_go_on(
    deferring: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Resident.advance_repair

    def breaks(self: Resident, until: float) -> PreparedRepair | None:
        raise NotFinite("Not a number.")

    monkeypatch.setattr(Resident, "advance_repair", breaks)
    async with running(deferring) as lethe:
        await until(lethe.is_ready)
        with capture_logs():
            state = await repaired(lethe, await lethe.delete("12", "57"), status="not_converged")
        assert "The repair was abandoned after an error" in state["explanation"]
        assert (await model_of(lethe))["version"] == 1
        assert 'lethe_repairs_not_converged_total{process="unlearner"} 1.0' in await lethe.metrics()
        monkeypatch.setattr(Resident, "advance_repair", original)
        assert_retrained(await repaired(lethe, await lethe.delete("3")), version=3)
        assert lethe.failures == []


@pytest.mark.ci
async def test_a_factor_past_its_age_leaves_the_memory_while_the_database_is_away(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    later, is_away = 0.0, True
    monkeypatch.setattr(preconditioner, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + later))
    monkeypatch.setattr("projector.forgetting.training_rows.why_no_preconditioner", lambda *of: None)
    caches: list[PreconditionerCache] = []
    advance, finish = PreconditionerCache.advance, VersionWriter.finish

    def advanced(cache: PreconditionerCache, until: float) -> None:
        advance(cache, until)
        caches.append(cache)

    async def is_made() -> bool:
        return bool(caches) and caches[-1].usable() is not None

    async def is_outdated() -> bool:
        usable = caches[-1].usable()
        return usable is not None and not usable.fresh

    async def is_gone() -> bool:
        return factor() is None

    async def finishes(*of: Any) -> Any:
        if is_away:
            raise Unavailable("The database does not answer.", "Start it.")
        return await finish(*of)

    monkeypatch.setattr(PreconditionerCache, "advance", advanced)
    monkeypatch.setattr(VersionWriter, "finish", finishes)
    async with running(settings) as lethe:
        await until(lethe.is_ready)
        await until(is_made)
        accepted = await lethe.delete("12")
        await until(is_outdated)
        held = caches[-1].usable()
        assert held is not None
        factor = weakref.ref(held.inverse)
        del held
        assert factor() is not None
        later = settings.factor_age
        await until(is_gone)
        is_away = False
        assert (await lethe.completed(accepted))["guarantee"] == "retrained"


@pytest.mark.slow
async def test_a_repair_that_cannot_be_taken_up_after_a_restart_is_given_up(
    deferring: Settings, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(deferring) as lethe:
        await until(lethe.is_ready)
        accepted = await lethe.delete("12", "57")
        assert (await lethe.completed(accepted))["repair"] == "pending"

    def breaks(self: Resident) -> None:
        raise MemoryError

    monkeypatch.setattr(Resident, "begin_repair", breaks)
    with capture_logs():
        async with running(deferring) as lethe:
            await repaired(lethe, accepted, status="not_converged")
            gate.is_open = True
            assert_retrained(await repaired(lethe, await lethe.delete("3")), version=3)
            assert lethe.failures == []


@pytest.mark.ci
async def test_a_batch_that_cannot_be_repaired_is_halved_until_the_guilty_request_fails_alone(
    lethe: Lethe, together: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = RepairRun.advance

    def breaks(self: RepairRun, until: float = float("inf")) -> bool:
        if not self._state.live[57]:
            raise NotFinite("Not a number.")
        return original(self, until)

    monkeypatch.setattr(RepairRun, "advance", breaks)
    together(3)
    with capture_logs():
        accepted = {node: await ask(lethe, node_body(node)) for node in ("12", "57", "3")}
        for node in ("12", "3"):
            assert_retrained(await lethe.completed(accepted[node]), version=1 if node == "12" else 2)
    failed = await lethe.state(accepted["57"])
    assert (failed["status"], failed["audit"]) == ("failed", None)
    assert "NotFinite" in failed["failure"]
    assert (await lethe.client.get("/predict/57")).status_code == 200
    assert (await model_of(lethe))["live_nodes"] == 158


@pytest.mark.ci
@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        *everyday(
            [
                RuntimeError(
                    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"
                ),
                OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
                DeviceError("A temporary file cannot be made.", "Make room."),
            ]
        ),
    ],
    ids=["no memory", "no memory for torch", "no room", "no room for temporary files"],
)
async def test_what_the_device_cannot_compute_stays_queued_and_stops_no_other(
    lethe: Lethe, together: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    original = RepairRun.advance
    attempts = 0

    def runs_out(self: RepairRun, until: float = float("inf")) -> bool:
        nonlocal attempts
        if not self._state.live[57]:
            attempts += 1
            raise error
        return original(self, until)

    async def is_tried_again() -> bool:
        return attempts > 2

    together(3)
    with monkeypatch.context() as patched, capture_logs() as logs:
        patched.setattr(RepairRun, "advance", runs_out)
        accepted = {node: await ask(lethe, node_body(node)) for node in ("57", "12", "3")}
        for node in ("12", "3"):
            assert_retrained(await lethe.completed(accepted[node]), version=1)
        # With the others, alone, and again in the next session, which the error has started.
        await until(is_tried_again)
        assert (await lethe.state(accepted["57"]))["status"] == "queued"
    assert "outage" in {line["event"] for line in logs}
    assert_retrained(await lethe.completed(accepted["57"]), version=2)
    assert lethe.failures == []


@pytest.mark.ci
async def test_many_that_cannot_be_computed_do_not_keep_others_from_it_for_good(
    lethe: Lethe, together: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = RepairRun.advance
    large = list(range(20, 26))

    def runs_out(self: RepairRun, until: float = float("inf")) -> bool:
        if not self._state.live[large].all():
            raise MemoryError
        return original(self, until)

    together(8)
    with monkeypatch.context() as patched, capture_logs():
        patched.setattr(RepairRun, "advance", runs_out)
        accepted = {node: await ask(lethe, node_body(str(node))) for node in (*large, 3, 12)}
        for node in (3, 12):
            await lethe.completed(accepted[node])
        assert {(await lethe.state(accepted[node]))["status"] for node in large} == {"queued"}
    for node in large:
        await lethe.completed(accepted[node])
    assert lethe.failures == []


@pytest.mark.ci
async def test_a_model_without_certificate_is_refused_until_repair_is_turned_off(
    settings: Settings, tmp_path: Path
) -> None:
    spec = ModelSpec(loss=LossKind.PLAIN_HINGE, solver=SolverKind.SGD, epochs=3)
    graph = load_dataset("synthetic:n=60,d=6,classes=3,seed=3", data_dirs=[])
    model = tmp_path / "uncertified"
    build_model(graph, spec, name="small", dataset="synthetic", split="full").write(model)
    settings = settings.model_copy(update={"model": model})
    with capture_logs():
        async with running(settings) as lethe:
            await until(lethe.has_failed)
    (failure,) = lethe.failures
    assert isinstance(failure, RepairImpossible)
    assert "plain_hinge has kinks" in failure.detail
    assert "--repair never" in failure.remedy
    async with running(settings.model_copy(update={"repair": "never"})) as lethe:
        await until(lethe.is_ready)
        state = await lethe.completed(await lethe.delete("1"))
        assert (state["guarantee"], state["repair"]) == ("span", "none")
        assert state["audit"]["distance_bound_after"] is None
        assert (await model_of(lethe))["distance_bound_relative"] is None
