"""`./lethe train --mlp WIDTH --public FILE`: a model on an MLP's outputs, or a refusal before work starts."""

from pathlib import Path

import numpy as np
import pytest

from model_store.store import Store
from projector.training.mlp import MlpRecord
from tests.support.clients.command_line import CommandLine

SYNTHETIC = "synthetic:n=60,d=12,classes=3,seed=1"


@pytest.fixture
def lethe(in_a_folder: None, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> CommandLine:
    (tmp_path / "public.txt").write_text("\n".join(str(row) for row in range(25)) + "\n")
    return CommandLine(capsys)


def test_a_model_is_trained_on_the_outputs_of_an_mlp(lethe: CommandLine, tmp_path: Path) -> None:
    ran = lethe("train", "--dataset", SYNTHETIC, "--out", "m", "--mlp", "9", "--public", "public.txt")
    assert ran.status == 0
    assert "9 outputs instead of the dataset's features, which the model does not store" in " ".join(ran.stdout.split())
    assert "25, never deleted" in ran.stdout
    store = Store.open(tmp_path / "m")
    assert store.manifest.mlp == MlpRecord(width=9, public_nodes=25)
    assert store.manifest.spec.mlp_width == 9
    base = store.load_base()
    assert base.graph.features.shape == (60, 9)
    assert np.flatnonzero(base.public).tolist() == list(range(25))


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--mlp", "9"), 2, "needs --public FILE"),
        (("--public", "public.txt"), 2, "needs --mlp WIDTH"),
        (("--mlp", "9", "--public", "absent.txt"), 2, "absent.txt"),
        (("--mlp", "9", "--public", "empty.txt"), 1, "none is"),
        (("--mlp", "9", "--public", "strange.txt"), 1, "belong to no node: nobody"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_before_work_starts(
    lethe: CommandLine, tmp_path: Path, arguments: tuple[str, ...], status: int, message: str
) -> None:
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "strange.txt").write_text("1\nnobody\n")
    ran = lethe("train", "--dataset", SYNTHETIC, "--out", "m", *arguments)
    assert ran.status == status
    assert message in " ".join(ran.stderr.split())
    assert not (tmp_path / "m").exists()
