"""What is measured at a time, (experiment, dataset, method, seed), and the one JSON file that it leaves."""

import json
import os
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import torch

from benchmarks.device import device_name
from model_store.datasets.load import default_data_dirs, load_dataset
from projector.graph.graph import Graph

#: What one case gave, by the name of the figure; None where the method has no such thing.
Figures: TypeAlias = dict[str, float | None]
#: A case (a share of the nodes, "all", …) and what it gave, one after another.
Cases: TypeAlias = Iterator[tuple[str, Figures]]

_ROOT = Path(__file__).parents[2]
#: How a unit ended: all cases measured; those of before the limit; the process was ended from outside (no memory).
MEASURED, OUT_OF_TIME, DIED = "measured", "out of time", "died"


@dataclass(frozen=True)
class Unit:
    """One thing to measure."""

    experiment: str
    dataset: str
    method: str
    seed: int

    def file(self, folder: Path) -> Path:
        """Where its result is, below `folder`."""
        return folder / _slug(self.dataset) / f"{_slug(f'{self.experiment} {self.method} {self.seed}')}.json"

    def __str__(self) -> str:
        return f"{self.experiment}, {self.dataset}, {self.method}, seed {self.seed}"


def graph_of(unit: Unit) -> Graph:
    """The unit's dataset; its seed draws the split where there is none. The same object for units in a row."""
    return _loaded(unit.dataset, unit.seed)


@lru_cache(maxsize=1)
def _loaded(dataset: str, seed: int) -> Graph:
    return load_dataset(dataset, data_dirs=default_data_dirs(os.environ), seed=seed)


def size_of(graph: Graph) -> dict[str, int]:
    """What the figures of a graph stand for."""
    return {
        "nodes": graph.nodes,
        "edges": graph.edges,
        "training": int(graph.train_mask.sum()),
        "test": int(graph.test_mask.sum()),
        "features": graph.num_features,
        "classes": graph.num_classes,
    }


def surroundings(threads: int) -> dict[str, object]:
    """What it takes to repeat a measurement: commit, device, versions, load of the machine, day."""
    return {
        "commit": _commit(),
        "device": device_name(torch.device("cpu")).partition(",")[0],
        "threads": threads,
        "load": round(os.getloadavg()[0], 1),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "numpy", "scipy", "torch-geometric", "pymetis")},
        },
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }


def _commit() -> str:
    """The commit of the code, marked where the code has changes since; results are not code."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results")
    return git("rev-parse", "HEAD") + ("-dirty" if changed else "")


def write(
    folder: Path, unit: Unit, outcome: str, cases: Mapping[str, Figures], seconds: float, about: Mapping[str, object]
) -> None:
    """Writes the unit's file, whole or not at all: an interrupted run leaves nothing that would pass for a result."""
    found = {**asdict(unit), "outcome": outcome, "cases": dict(cases), "seconds": round(seconds, 3), **about}
    file = unit.file(folder)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(found, indent=1) + "\n")
    partial.rename(file)


def read(folder: Path) -> list[dict[str, Any]]:
    """What every unit's file below `folder` says, in the order of their names."""
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*/*.json"))]


def _slug(words: str) -> str:
    return re.sub(r"[^a-z0-9+_.]+", "-", words).strip("-")
