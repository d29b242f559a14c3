"""Products with P are counted: predictions and the bound take as many as announced."""

from pathlib import Path

import pytest

from model_store.build import build_model
from model_store.datasets.load import load_dataset
from model_store.work import Work
from projector.network.spec import Combine, LossKind, ModelSpec
from service.unlearner.committed import Committed


@pytest.mark.parametrize(
    "spec",
    [
        ModelSpec(),
        ModelSpec(hops=3, combine=Combine.CONCAT, loss=LossKind.OVR),
        ModelSpec(hops=1, label_hops=2, regularization=1e-2),
    ],
    ids=["last", "concat", "labels"],
)
def test_predictions_and_the_bound_take_the_products_announced(tmp_path: Path, spec: ModelSpec) -> None:
    graph = load_dataset("synthetic:n=120,d=12,classes=5,seed=3", data_dirs=[])
    store = build_model(graph, spec, name="m", dataset="synthetic", split="full").write(tmp_path / "m")
    work = Work()
    committed = Committed.load(
        store.manifest, store.load_base(), store.read_version(store.current()), 0, "cpu", work=work
    )
    for begin, amount in (
        (committed.predictions, committed.sweep_columns),
        (lambda: committed.certificate, committed.bound_columns),
    ):
        work.begin("Sweeping", amount)
        begin()
        assert work._step is not None
        assert work._step.done == pytest.approx(amount, rel=0.05)
