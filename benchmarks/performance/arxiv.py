"""The arXiv graph, whole: training, loading and a batch of 64 deletions with all predictions refreshed.

The graph, labels and split are OGB's; its features are in no stored copy, so seeded Gaussian ones with a class mean
stand in, and accuracies mean nothing. `./lethe train` runs as a process of its own, so that its peak memory is its own.

    python -m benchmarks.performance.arxiv [--data DIR] [--out DIR] [--hops 3] [--label-hops 3]
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from benchmarks.performance.unlearn import device_name
from model_store.datasets.load import default_data_dirs
from model_store.store import Store
from projector.forgetting.batch import Removal
from service.unlearning.placement import Placement
from service.unlearning.resident import Resident

_WIDTH, _BATCH, _BATCHES = 128, 64, 5


def with_features(source: Path, target: Path) -> None:
    """Writes the dataset `source` with seeded features (n, 128) float32 as `target`."""
    rng = np.random.default_rng(0)
    with np.load(source, allow_pickle=False) as found:
        kept = ("edge_index", "y", "train_mask", "val_mask", "test_mask")
        arrays = {name: found[name] for name in kept}
    labels = arrays["y"]
    means = rng.standard_normal((int(labels.max()) + 1, _WIDTH), dtype=np.float32)
    noise = rng.standard_normal((labels.size, _WIDTH), dtype=np.float32)
    np.savez(target, x=means[labels] * 0.3 + noise, **arrays)


def trained(dataset: Path | str, out: Path, hops: int, label_hops: int, sgd: bool) -> tuple[float, float, float]:
    """Seconds, processor seconds and peak memory (GiB) of `./lethe train` with concatenated hops and label reuse."""
    command = [sys.executable, "-m", "service.cli", "train", "--dataset", str(dataset), "--out", str(out)]
    command += ["--hops", str(hops), "--combine", "concat", "--label-hops", str(label_hops), "--name", "arxiv"]
    if sgd:
        command += ["--solver", "sgd", "--batch-size", "4096", "--epochs", "10", "--learning-rate", "0.05"]
    started = time.perf_counter()
    subprocess.run(command, check=True)
    seconds, used = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / (1 << 20)


def main() -> None:
    """Prints one line per figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of ogbn_arxiv_nofeat.npz")
    parser.add_argument("--out", type=Path, help="folder to work in; a temporary one by default")
    parser.add_argument("--hops", type=int, default=3)
    parser.add_argument("--label-hops", type=int, default=3)
    parser.add_argument("--sgd", action="store_true", help="train by minibatches instead of Newton steps")
    options = parser.parse_args()
    folders = [options.data] if options.data else default_data_dirs(os.environ)
    found = [folder / "ogbn_arxiv_nofeat.npz" for folder in folders if (folder / "ogbn_arxiv_nofeat.npz").is_file()]
    if not found:
        raise SystemExit(f"ogbn_arxiv_nofeat.npz is in none of {', '.join(map(str, folders))}.")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.out or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        dataset, model = folder / "arxiv.npz", folder / "model"
        with_features(found[0], dataset)
        seconds, processor, gibibytes = trained(dataset, model, options.hops, options.label_hops, options.sgd)
        device = device_name(torch.device("cpu"))
        print(
            f"{device}, {datetime.now(UTC):%Y-%m-%d}, load {os.getloadavg()[1]:.1f}, arXiv graph, seeded {_WIDTH} "
            "features; processor seconds are those of all threads together"
        )
        print(
            f"train, L = {options.hops}, concat, {options.label_hops} label hops: {seconds:.0f} s, "
            f"{processor:.0f} processor s, {gibibytes:.2f} GiB"
        )
        started = time.perf_counter()
        store = Store.open(model)
        resident = Resident.load(
            store.manifest, store.load_base(), store.read_version(store.current()), 0, Placement("cpu")
        )
        resident.predictions()
        print(f"load and predict: {time.perf_counter() - started:.1f} s")
        rng = np.random.default_rng(1)
        for _ in range(_BATCHES):
            rows = rng.choice(np.flatnonzero(resident.state.live), size=_BATCH, replace=False)
            started, before = time.perf_counter(), time.process_time()
            resident.commit(resident.prepare([Removal(nodes=row) for row in rows[:, None]]))
            seconds, processor = time.perf_counter() - started, time.process_time() - before
            print(f"batch of {_BATCH}, all predictions refreshed: {seconds:.2f} s, {processor:.2f} processor s")
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
        print(f"peak memory of this process: {own:.2f} GiB")


if __name__ == "__main__":
    main()
