"""Display of a long command: a bar on a terminal, lines elsewhere, nothing if it is short."""

import io
from threading import Event

import pytest
from rich.console import Console

from model_store.work import Work
from projector.network.spec import ModelSpec
from projector.training.fit import TrainingProgress
from projector.training.mlp import MlpProgress
from service.cli import console
from service.cli.training_display import TrainingSteps


def test_a_terminal_shows_step_share_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, drawn = io.StringIO(), io.StringIO()
    terminal = Console(file=shown, force_terminal=True, width=120)
    monkeypatch.setattr(console, "stderr", lambda: terminal)
    now = 0.0
    work = Work(lambda: now)
    with console.show_progress("Looking", work):
        work.begin("Copying \x1b the model", 200)
        now = 30.0
        work.count(150)
        bar = console._Bar(work, Console(file=drawn, force_terminal=True, width=120))
        bar.console.print(bar)
    assert r"Copying \x1b the model …" in drawn.getvalue()
    assert "75 % done, about 10 s left" in drawn.getvalue()
    assert "Looking …" in shown.getvalue()


def test_a_pipe_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, noted = list[str](), Event()

    def note(text: str) -> None:
        lines.append(text)
        noted.set()

    monkeypatch.setattr(console, "note", note)
    monkeypatch.setattr(console, "_LINES_S", 0.001)
    with console.show_progress("Copying") as work:
        work.relay("Reading the model: 50 % done, about 2 min left")
        assert noted.wait(20)
    assert set(lines) == {"Reading the model: 50 % done, about 2 min left"}


def test_training_says_how_far_it_is_by_epochs_and_by_digits() -> None:
    now = 0.0
    work = Work(lambda: now)
    steps = TrainingSteps(work, ModelSpec(tolerance=1e-8))
    steps(MlpProgress(epoch=1, epochs=4, loss=0.5))
    steps(MlpProgress(epoch=3, epochs=4, loss=0.4))
    now = 30.0
    assert work.status == "Training the MLP: 75 % done, about 10 s left"
    steps(TrainingProgress(1, None, objective=0.3, relative_gradient=1e-2))
    steps(TrainingProgress(2, None, objective=0.3, relative_gradient=1e-4))
    now = 90.0
    assert work.status == "Training: 50 % done, about 60 s left"
    steps(TrainingProgress(3, None, objective=0.3, relative_gradient=1e-9))
    assert work.what == "Computing coefficients"


def test_what_is_over_at_once_leaves_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    with console.show_progress("Copying") as work:
        work.count(1)
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "")
