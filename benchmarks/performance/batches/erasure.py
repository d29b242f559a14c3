"""Times the erasure of a node and its verification, step by step as in the unlearner, against one fsync on the same
disk.

Measured are steps 9 and 10 of a version with one deleted node, repaired: writing the coefficients of its weights,
overwriting the deleted data, removing the previous version, and measuring the span residual from the disk. In turn with
them, a file of 4 KiB beside the model is overwritten and synced. The nodes are random ones and those with the most
edges. The model is a copy.

With `--chunks`, it also times the same erasure if each chunk were an immutable file: the chunks are rewritten without
the deleted data, an index names the new ones, and the old ones are overwritten and unlinked.

    python -m benchmarks.performance.batches.erasure [--model DIR]... [--dataset cora]... [--repeats 20] [--hubs 5]
        [--chunks]
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from benchmarks.device import device_name
from model_store.base.arrays import BaseArrays, Raw, slots_within
from model_store.base.erasure import Erasure, plan
from model_store.base.index import Index
from model_store.build import build_model
from model_store.datasets.load import default_data_dirs, load_dataset
from model_store.disk.durable import durable_changes, replace_file, sync
from model_store.store import Store
from model_store.versions import VersionRef, VersionState
from projector.forgetting.batch import Removal
from projector.network.spec import ModelSpec
from service.domain.states import RepairPolicy
from service.unlearner.committed import version_state
from service.unlearner.measurement import stored_span_residual
from service.unlearner.new_version import ToErase
from service.unlearner.placement import Placement
from service.unlearner.resident import Resident

_FENCING = 1
_PLACEMENT = Placement("cpu", RepairPolicy.ALWAYS)


class Model:
    """A stored model, and the unlearner's state in memory."""

    def __init__(self, folder: Path) -> None:
        self.store = Store.open(folder)
        self._ref = self.store.current()
        base, state = self.store.load_base(), self.store.read_version(self._ref)
        self.resident = Resident.load(self.store.manifest, base, state, self._ref.version, _PLACEMENT)
        self.degrees = np.diff(base.graph.adjacency.indptr)
        self._to_erase = ToErase(self.store.manifest.nodes, np.empty((0, 2), dtype=np.int64))
        self._synced = os.open(folder.parent / "synced", os.O_RDWR | os.O_CREAT, 0o600)
        os.pwrite(self._synced, bytes(4096), 0)
        os.fsync(self._synced)

    def delete(self, row: int, *, chunks: bool) -> tuple[float, ...]:
        """Return milliseconds to sync, to write coefficients, to erase, to verify, and to erase by `chunks`; their
        number.
        """
        prepared = self.resident.prepare([Removal(nodes=np.array([row]))])
        self.resident.commit(prepared)
        ref = VersionRef(prepared.state.version, _FENCING)
        digest = self.store.write_version(
            ref, version_state(prepared.state), beta_version=ref.version, edges=prepared.live_graph.edges
        )
        self.store.set_current(ref)
        self._ref = ref
        by_chunks, files = self._by_chunks(row) if chunks else (0.0, 0)
        started = time.perf_counter()
        os.pwrite(self._synced, os.urandom(4096), 0)
        os.fsync(self._synced)
        synced = time.perf_counter()
        self.store.write_beta(*self.resident.committed.coefficients(), version=ref.version, fencing=_FENCING)
        written = time.perf_counter()
        committed = self._erase(digest)
        erased = time.perf_counter()
        residual = stored_span_residual(self.store, committed)
        verified = time.perf_counter()
        if residual > 1e-9:
            raise SystemExit(f"The span residual is {residual:.1e}.")
        times = np.diff([started, synced, written, erased, verified]) * 1e3
        return *times.tolist(), by_chunks, files

    def _by_chunks(self, row: int) -> tuple[float, int]:
        """Erase a node by replacing one-chunk files. Returns milliseconds and the number of files."""
        base, folder = self.store.path / "base", self.store.path.with_name("chunks")
        started = time.perf_counter()
        index = Index.latest(base)
        arrays = BaseArrays(base, index)
        generation = replace(index.generation, number=index.generation.number + 1)
        opened = plan(arrays, Erasure(nodes=np.array([row])), self.store.manifest.feature_layout, generation)
        assert opened is not None
        spent = time.perf_counter() - started
        folder.mkdir()
        contents: dict[str, tuple[Raw, Raw]] = {}
        for name, table in opened.tables.items():
            for chunk in np.unique(table.chunk_of(table.erasing)).tolist():
                for array, stored in table.arrays.items():
                    old = arrays.read_raw(name, array, range(chunk, chunk + 1))
                    new = old.copy()
                    new[slots_within(table.erasing, table, chunk)] = stored.blank
                    contents[f"{name}.{array}.{chunk}"] = old, new
        with durable_changes() as changes:
            for name, (old, _) in contents.items():
                changes.write(folder / f"{name}-old", [old.data])
        sync(folder)
        started = time.perf_counter()
        with durable_changes() as changes:
            for name, (_, new) in contents.items():
                changes.write(folder / f"{name}-new", [new.data])
        replace_file(folder / index.file_name, opened.closed().to_bytes(), temporary=".index")
        with durable_changes() as changes:
            for name, (old, _) in contents.items():
                changes.overwrite(folder / f"{name}-old", np.arange(len(old)), slot_bytes=old.shape[1], fill=0)
        with durable_changes() as changes:
            for name in contents:
                changes.remove(folder / f"{name}-old")
        spent += time.perf_counter() - started
        shutil.rmtree(folder)
        return spent * 1e3, len(contents)

    def _erase(self, digest: str) -> VersionState:
        committed = self.store.read_version(self._ref, digest=digest)
        self.store.erase(self._to_erase.erasure(committed), fencing=_FENCING, keep=self._ref)
        self._to_erase.erased(committed)
        return committed


def folders(models: Iterable[Path], datasets: Iterable[str], work: Path) -> Iterator[tuple[str, Path]]:
    """Yield a name and a folder for each model, in `work`."""
    for model in models:
        yield model.name, Path(shutil.copytree(model, work / model.name))
    for dataset in datasets:
        graph = load_dataset(dataset, data_dirs=default_data_dirs(os.environ))
        built = build_model(graph, ModelSpec(), name=dataset, dataset=dataset, split="full")
        built.write(work / dataset)
        yield dataset, work / dataset


def main() -> None:
    """Print two lines for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, action="append", default=[], help="a folder of `./lethe train`")
    parser.add_argument("--dataset", action="append", default=[], help="dataset to train on with the default options")
    parser.add_argument("--work", type=Path, help="folder on the disk to measure; a temporary one by default")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--hubs", type=int, default=5)
    parser.add_argument("--chunks", action="store_true", help="also erase by one-chunk files")
    options = parser.parse_args()
    print(
        f"{device_name(torch.device('cpu'))}, {datetime.now(UTC):%Y-%m-%d}, load {os.getloadavg()[1]:.1f}, medians, ms"
    )
    print(
        "| model | nodes deleted | fsync | coefficients | erase | verify | all | all / fsync | erase by chunks | "
        "their files |"
    )
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory(dir=options.work) as temporary:
        for name, folder in folders(options.model, options.dataset, Path(temporary)):
            model = Model(folder)
            by_degree = np.argsort(model.degrees, kind="stable")
            others = np.random.default_rng(1).permutation(by_degree[: -options.hubs or None])
            chosen = {f"{options.repeats} random": others[: options.repeats + 1]}
            chosen[f"{options.hubs} with the most edges"] = by_degree[: -options.hubs - 1 : -1]
            for what, rows in chosen.items():
                times = [model.delete(int(row), chunks=options.chunks) for row in rows]
                # The first erasure looks for everything that was ever deleted.
                medians = map(statistics.median, zip(*times[len(rows) > options.hubs :], strict=True))
                fsync, coefficients, erase, verify, by_chunks, files = medians
                total = coefficients + erase + verify
                figures = (fsync, coefficients, erase, verify, total, total / fsync)
                cells = [name, what, *(f"{each:.1f}" for each in figures)]
                cells += [f"{by_chunks:.1f}", f"{files:.0f}"] if options.chunks else ["-", "-"]
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
