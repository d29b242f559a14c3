"""A unit of measurement (experiment, dataset, method, seed), and its record."""

import os
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import TypeAlias

import torch

from benchmarks.device import device_name
from benchmarks.records import SUFFIX, Record, put, read_all
from model_store.datasets.load import default_data_dirs, load_dataset
from projector.errors import GraphError
from projector.graph.graph import Graph

#: Figures of one case, by name; None if the method has no such figure.
Figures: TypeAlias = dict[str, float | None]
#: Cases (a share of the nodes, "all", …) and their figures, one by one.
Cases: TypeAlias = Iterator[tuple[str, Figures]]

_ROOT = Path(__file__).parents[2]
#: How a unit ended: all cases measured; only those within the limit; or the process was killed from outside (no
#: memory).
MEASURED, OUT_OF_TIME, DIED = "measured", "out of time", "died"


@dataclass(frozen=True)
class Unit:
    """One measurement."""

    experiment: str
    dataset: str
    method: str
    seed: int

    @classmethod
    def of(cls, record: Record) -> "Unit":
        """Return the unit of a record."""
        return cls(*(record[field] for field in KEY))

    def file(self, folder: Path) -> Path:
        """Return the path of the file below `folder` that has its record: one for each dataset and experiment."""
        return folder / _slug(self.dataset) / f"{self.experiment}{SUFFIX}"

    def __str__(self) -> str:
        return f"{self.experiment}, {self.dataset}, {self.method}, seed {self.seed}"


#: The fields that identify a record.
KEY = tuple(each.name for each in fields(Unit))


def graph_of(unit: Unit) -> Graph:
    """Return the unit's dataset; its seed draws a missing split. Consecutive units get the same object."""
    return _loaded(unit.dataset, unit.seed)


@lru_cache(maxsize=1)
def _loaded(dataset: str, seed: int) -> Graph:
    graph = load_dataset(dataset, data_dirs=default_data_dirs(os.environ), seed=seed)
    if graph.weighted:
        raise GraphError(
            f"{dataset} has weights of edges, and the methods that are compared here have none.", "Remove edge_weight."
        )
    return graph


def size_of(graph: Graph) -> dict[str, int]:
    """Describe the size of a graph, to store with its figures."""
    return {
        "nodes": graph.nodes,
        "edges": graph.edges,
        "training": int(graph.train_mask.sum()),
        "test": int(graph.test_mask.sum()),
        "features": graph.num_features,
        "classes": graph.num_classes,
    }


def surroundings(threads: int) -> dict[str, object]:
    """Describe a measurement for repeating it: commit, device, versions, load of the machine, day."""
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
    """Return the commit of the code, marked if the code has uncommitted changes; results are not code."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results")
    return git("rev-parse", "HEAD") + ("-dirty" if changed else "")


def write(
    folder: Path, unit: Unit, outcome: str, cases: Mapping[str, Figures], seconds: float, about: Mapping[str, object]
) -> None:
    """Record a unit in place of its earlier record."""
    found = {**asdict(unit), "outcome": outcome, "cases": dict(cases), "seconds": round(seconds, 3), **about}
    put(unit.file(folder), found, KEY)


def read(folder: Path) -> list[Record]:
    """Return the records of all units below `folder`: by dataset, experiment, method and seed."""
    return read_all(folder.glob(f"*/*{SUFFIX}"))


def _slug(words: str) -> str:
    return re.sub(r"[^a-z0-9+_.]+", "-", words).strip("-")
