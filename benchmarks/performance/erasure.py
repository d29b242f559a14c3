"""Erasing a node and verifying what is left, step by step as the unlearner does it, beside one fsync on the same disk.

The steps 9 and 10 of a version with one deleted node: what is gone is overwritten, the version before it removed, and
the span residual measured from the disk. In turn with them a file of 4 KiB beside the model is overwritten and synced.
Random nodes, and those with the most edges. The model is a copy and is not repaired, so no coefficients are rewritten.

    python -m benchmarks.performance.erasure [--model DIR]... [--dataset cora]... [--repeats 20] [--hubs 5]
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from benchmarks.performance.unlearn import device_name
from model_store.build import build_model
from model_store.datasets.load import default_data_dirs, load_dataset
from model_store.store import Store
from model_store.versions import VersionRef, VersionState
from projector.forgetting.batch import Removal
from projector.network.spec import ModelSpec
from service.unlearning.loading import version_state
from service.unlearning.measurement import stored_span_residual
from service.unlearning.placement import Placement
from service.unlearning.resident import Resident
from service.worker.leftovers import Leftovers

_FENCING = 1


class Model:
    """A stored model, and what the unlearner has of it in memory."""

    def __init__(self, folder: Path) -> None:
        self.store = Store.open(folder)
        self._ref = self.store.current()
        base, state = self.store.load_base(), self.store.read_version(self._ref)
        self.resident = Resident.load(self.store.manifest, base, state, self._ref.version, Placement("cpu"))
        self.degrees = np.diff(base.graph.adjacency.indptr)
        self._leftovers = Leftovers(self.store.manifest.nodes, np.empty((0, 2), dtype=np.int64))
        self._synced = os.open(folder.parent / "synced", os.O_RDWR | os.O_CREAT, 0o600)
        os.pwrite(self._synced, bytes(4096), 0)
        os.fsync(self._synced)

    def delete(self, row: int) -> tuple[float, float, float]:
        """Milliseconds of a sync, of erasing, and of verifying one node."""
        prepared = self.resident.prepare([Removal(nodes=np.array([row]))])
        self.resident.commit(prepared)
        ref = VersionRef(prepared.state.version, _FENCING)
        before = self.store.beta_version(self._ref)
        digest = self.store.write_version(
            ref, version_state(prepared.state), beta_version=before, edges=prepared.live_graph.edges
        )
        self.store.set_current(ref)
        self._ref = ref
        started = time.perf_counter()
        os.pwrite(self._synced, os.urandom(4096), 0)
        os.fsync(self._synced)
        synced = time.perf_counter()
        committed = self._erase(digest)
        erased = time.perf_counter()
        residual = stored_span_residual(self.store, committed)
        verified = time.perf_counter()
        if residual > 1e-9:
            raise SystemExit(f"The span residual is {residual:.1e}.")
        return (synced - started) * 1e3, (erased - synced) * 1e3, (verified - erased) * 1e3

    def _erase(self, digest: str) -> VersionState:
        committed = self.store.read_version(self._ref, digest=digest)
        self.store.erase(self._leftovers.erasure(committed), fencing=_FENCING, keep=self._ref)
        self._leftovers.erased(committed)
        return committed


def folders(models: Iterable[Path], datasets: Iterable[str], work: Path) -> Iterator[tuple[str, Path]]:
    """A name and a folder for each model, in `work`."""
    for model in models:
        yield model.name, Path(shutil.copytree(model, work / model.name))
    for dataset in datasets:
        graph = load_dataset(dataset, data_dirs=default_data_dirs(os.environ))
        built = build_model(graph, ModelSpec(), name=dataset, dataset=dataset, split="full")
        built.write(work / dataset)
        yield dataset, work / dataset


def main() -> None:
    """Prints two lines per model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, action="append", default=[], help="a folder of `./lethe train`")
    parser.add_argument("--dataset", action="append", default=[], help="trained on with the default options")
    parser.add_argument("--work", type=Path, help="folder on the disk to measure; a temporary one by default")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--hubs", type=int, default=5)
    options = parser.parse_args()
    print(
        f"{device_name(torch.device('cpu'))}, {datetime.now(UTC):%Y-%m-%d}, load {os.getloadavg()[1]:.1f}, medians, ms"
    )
    print("| model | nodes deleted | fsync | erase | verify | both | both / fsync |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory(dir=options.work) as temporary:
        for name, folder in folders(options.model, options.dataset, Path(temporary)):
            model = Model(folder)
            by_degree = np.argsort(model.degrees, kind="stable")
            others = np.random.default_rng(1).permutation(by_degree[: -options.hubs or None])
            chosen = {f"{options.repeats} random": others[: options.repeats + 1]}
            chosen[f"{options.hubs} with the most edges"] = by_degree[: -options.hubs - 1 : -1]
            for what, rows in chosen.items():
                times = [model.delete(int(row)) for row in rows]
                # The first erasure looks for all that was ever deleted.
                fsync, erase, verify = map(statistics.median, zip(*times[len(rows) > options.hubs :], strict=True))
                both = erase + verify
                print(
                    f"| {name} | {what} | {fsync:.1f} | {erase:.1f} | {verify:.1f} | {both:.1f} | {both / fsync:.1f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
