"""Reporting the committed version never takes a sweep over the graph, since the event loop does it."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from model_store.datasets.load import load_dataset
from projector.forgetting.batch import Removal
from projector.network.spec import LossKind, ModelSpec, SolverKind
from projector.solvers.objective import Objective
from service.unlearner.context import PrivacyLedger
from service.unlearner.loop import Unlearner
from service.unlearner.new_version import committed_facts
from service.unlearner.resident import Resident
from tests.support.models.stored import StoredModel, built

GRAPH = "synthetic:n=60,d=8,classes=3,seed=1"


def holding(resident: Resident) -> Unlearner:
    unlearner = Unlearner.__new__(Unlearner)
    unlearner.loader = SimpleNamespace(writer=SimpleNamespace(resident=resident))  # type: ignore[assignment]
    unlearner._context = SimpleNamespace(ledger=PrivacyLedger())  # type: ignore[assignment]
    return unlearner


def refused(*_: object) -> None:
    pytest.fail("a sweep over the graph")


def test_nothing_is_reported_until_the_certificate_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resident = StoredModel(tmp_path / "model", built(load_dataset(GRAPH, data_dirs=[]), ModelSpec())).resident
    unlearner = holding(resident)
    with monkeypatch.context() as patch:
        patch.setattr(Objective, "at", refused)
        assert unlearner.served is None
    facts = committed_facts(resident.committed, PrivacyLedger())
    resident.commit(resident.prepare([Removal(nodes=np.array([3]))]))
    with monkeypatch.context() as patch:
        patch.setattr(Objective, "at", refused)
        assert unlearner.served is not None
        assert unlearner.served.version == facts.version + 1


def test_a_loss_without_a_certificate_waits_for_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ModelSpec(loss=LossKind.PLAIN_HINGE, solver=SolverKind.SGD, epochs=2)
    resident = StoredModel(tmp_path / "model", built(load_dataset(GRAPH, data_dirs=[]), spec)).resident
    monkeypatch.setattr(Objective, "at", refused)
    served = holding(resident).served
    assert served is not None
    assert served.distance_bound is None
