"""Attacks on a running Lethe: infer the deleted nodes and their features from answers over HTTP.

The script trains its own Lethe and deletes nodes, first one at a time and then sixteen at a time. Before and after each
deletion it queries public nodes once, with all digits; it rounds the answers offline. Half of the training nodes, at
most 5,000, are candidates, and the deleted nodes are among them. All other nodes are public. The attackers know the
rounding, the size of the noise in certified weights, every version's answers, the graph, the features and labels of
public nodes and candidates, and that one deletion lies between two versions. A unit is one dataset, loss, certificate
and seed. A unit with a record is not measured again.

    python -m benchmarks.observer.measure [--dataset cora …] [--loss softmax …] [--certify EPSILON,DELTA] [--seeds N]
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import torch

from benchmarks.baselines.linear import remaining
from benchmarks.observer.attacked import BATCH, Attackers
from benchmarks.observer.observed import observed, serving
from benchmarks.paper.setting import ARXIV, SOFTMAX, spec_of
from benchmarks.paper.units import size_of, surroundings
from benchmarks.records import SUFFIX, put, read
from model_store.datasets.load import default_data_dirs, load_dataset
from projector.network.spec import LossKind

RESULTS = Path(__file__).parents[1] / "results" / "observer"
DATASETS = ("cora", "pubmed", ARXIV)
LOSSES = (LossKind.SOFTMAX.value, LossKind.OVR.value)
_CANDIDATES = 5000
#: Single deletions and batches in a unit; fewer on graphs of more than `_LARGE` nodes.
_SINGLE, _BATCHES = 30, 6
_SINGLE_OF_LARGE, _BATCHES_OF_LARGE, _LARGE = 6, 2, 50_000


@dataclass(frozen=True)
class Unit:
    """One measurement."""

    dataset: str
    loss: str
    #: epsilon and delta, separated by a comma; None without a certificate.
    certify: str | None
    seed: int

    def file(self, folder: Path) -> Path:
        """Return the path of the file below `folder` that has its record: one for each dataset."""
        return folder / f"{self.dataset}{SUFFIX}"


#: The fields that identify a record.
KEY = tuple(each.name for each in fields(Unit))


def measured(unit: Unit) -> dict[str, object]:
    """Return every figure of every deletion, by case."""
    began, about = time.monotonic(), surroundings(torch.get_num_threads())
    spec = spec_of(unit.dataset, SOFTMAX if unit.loss == LossKind.SOFTMAX.value else "")
    graph = load_dataset(unit.dataset, data_dirs=default_data_dirs(os.environ))
    large, random = graph.nodes > _LARGE, np.random.default_rng(unit.seed)
    training = np.flatnonzero(graph.train_mask)
    candidates = np.sort(random.choice(training, min(_CANDIDATES, training.size // 2), replace=False))
    single, batches = (_SINGLE_OF_LARGE, _BATCHES_OF_LARGE) if large else (_SINGLE, _BATCHES)
    doomed = random.choice(candidates, single + batches * BATCH, replace=False)
    targets = [*np.split(doomed[:single], single), *np.split(doomed[single:], batches)]
    cases: dict[str, dict[str, list[float | None]]] = {}
    with (
        tempfile.TemporaryDirectory() as temporary,
        serving(Path(temporary) / "home", unit.dataset, spec, unit.certify) as (deleting, asking),
    ):
        noise = asking.model().noise
        attackers = Attackers(graph, spec, candidates, unit.seed, 0.0 if noise is None else noise.sigma)
        left = graph
        for deletion in observed(deleting, asking, list(graph.node_ids), attackers.public, targets):
            left = remaining(left, deletion.nodes)
            for case, figures in attackers.figures(deletion, left):
                of_case = cases.setdefault(str(case), {})
                for name, value in figures.items():
                    of_case.setdefault(name, []).append(None if value is None else round(value, 6))
            print(
                f"{unit}: {deletion.nodes.size} deleted, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True
            )
    return {
        **asdict(unit),
        "cases": cases,
        "seconds": round(time.monotonic() - began),
        **about,
        "spec": asdict(spec),
        "graph": {**size_of(graph), "candidates": candidates.size, "public": int(attackers.public.size)},
    }


def main() -> None:
    """Measure the missing units."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", nargs="+", default=DATASETS)
    parser.add_argument("--loss", nargs="+", choices=LOSSES, default=LOSSES)
    parser.add_argument("--certify", metavar="EPSILON,DELTA", help="as in `lethe serve`; default: exact weights")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS, help="results folder")
    options = parser.parse_args()
    for seed in range(options.seeds):
        for dataset in options.dataset:
            for loss in options.loss:
                unit = Unit(dataset, loss, options.certify, seed)
                file = unit.file(options.out)
                if unit in [Unit(*(record[field] for field in KEY)) for record in read(file)]:
                    continue
                found = measured(unit)
                put(file, found, KEY)
                print(f"{unit}: {found['seconds']} s", flush=True)


if __name__ == "__main__":
    # Also stops the Lethe.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    main()
