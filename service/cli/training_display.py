"""Output of training: progress while it runs, and a table at the end."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from model_store.work import Work
from projector.network.spec import ModelSpec
from service.cli.console import table
from service.domain.formats import number, percent, plural

if TYPE_CHECKING:
    from model_store.build import BuildProgress
    from model_store.manifest import Manifest
    from projector.training.fit import TrainingProgress


class TrainingSteps:
    """Reports training progress to a `Work`; call it at each step."""

    def __init__(self, work: Work, spec: ModelSpec) -> None:
        self._work = work
        self._tolerance = spec.tolerance
        self._what = ""
        self._done = 0.0

    def __call__(self, step: "BuildProgress") -> None:
        """Report one epoch of the MLP, or one step of the solver."""
        from projector.training.mlp import MlpProgress

        if isinstance(step, MlpProgress):
            self._show("Training the MLP", step.epoch / step.epochs)
            return
        done = _share_done(step, self._tolerance)
        if done < 1:
            self._show("Training", done)
        else:
            self._work.begin("Computing coefficients")

    def _show(self, what: str, done: float) -> None:
        if what != self._what:
            self._work.begin(what, 1.0)
            self._what, self._done = what, 0.0
        self._work.count(done - self._done)
        self._done = done


def _share_done(step: "TrainingProgress", tolerance: float) -> float:
    """Return the finished share: epochs are counted; Newton's steps gain digits, so digits are counted."""
    if step.iterations is not None:
        return step.iteration / step.iterations
    if not 0.0 < step.relative_gradient < 1.0:
        return 0.0 if step.relative_gradient else 1.0
    return min(math.log(step.relative_gradient) / math.log(tolerance), 1.0)


def summary(manifest: "Manifest", out: Path) -> Table:
    """Return a table of what was trained, and how well."""
    training = manifest.training
    channels = "".join(f", test column {one.column} on {one.nodes} nodes" for one in manifest.injected_channels)
    rows = [
        ("graph", f"{manifest.nodes} nodes, {manifest.edges} edges, {manifest.features} features{channels}"),
        *_canary_rows(manifest),
        *_mlp_rows(manifest),
        *([] if manifest.encoder is None else [("encoder", f"{manifest.encoder}, which deletions do not change")]),
        ("classes", str(len(manifest.classes))),
        *_quality_rows(manifest),
        ("rank", f"{manifest.rank} of {manifest.features}"),
        ("condition number", number(manifest.condition_number)),
        ("|W - HᵀU| / |W|", number(training.identity_error)),
        ("relative gradient", number(training.relative_gradient)),
        ("steps", str(training.iterations)),
        ("time", f"{training.seconds:.2f} s on {training.device}"),
        ("warnings", str(len(manifest.warnings)) if manifest.warnings else "none"),
    ]
    return table(f"{manifest.name} in {out}", ("", ""), rows)


def _quality_rows(manifest: "Manifest") -> list[tuple[str, str]]:
    accuracy, fit = manifest.accuracy, manifest.regression
    if fit is None:
        shares = (("train", accuracy.train), ("validation", accuracy.val), ("test", accuracy.test))
        return [(f"accuracy {name}", percent(share)) for name, share in shares]
    figures = (
        ("train", fit.r_squared_train, fit.squared_error_train),
        ("validation", fit.r_squared_val, fit.squared_error_val),
        ("test", fit.r_squared_test, fit.squared_error_test),
    )
    return [
        (f"R² {name} (mean squared error)", f"{_or_none(share)} ({_or_none(error)})") for name, share, error in figures
    ]


def _or_none(figure: float | None) -> str:
    return "–" if figure is None else number(figure)


def _canary_rows(manifest: "Manifest") -> list[tuple[str, str]]:
    if manifest.canaries is None:
        return []
    cohorts, nodes = manifest.canaries.cohorts, manifest.canaries.nodes
    return [("canaries", f"{cohorts * nodes} of these nodes, for {plural(cohorts, 'drill')}")]


def _mlp_rows(manifest: "Manifest") -> list[tuple[str, str]]:
    if manifest.mlp is None:
        return []
    kept = "instead of the dataset's features, which the model does not store"
    return [
        ("MLP", f"{manifest.mlp.width} outputs {kept}"),
        ("public nodes", f"{manifest.mlp.public_nodes}, never deleted"),
    ]
