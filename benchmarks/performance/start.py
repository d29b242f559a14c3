"""What a checkpoint of the Gram factors saves at a start: loading a model with it and without it.

Seeded synthetic features, twice as many nodes as features. Each load is that of a starting service: base and version
read with all digests, everything put on the device, the factors read and checked, or computed.

    python -m benchmarks.performance.start [--features 512 1433 4000] [--repeats 3]
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import torch

from benchmarks.performance.unlearn import device_name
from model_store import gram_checkpoint
from model_store.build import build_model
from model_store.datasets.load import load_dataset
from model_store.store import Store
from projector.network.spec import ModelSpec
from service.unlearning.placement import Placement
from service.unlearning.resident import Resident


def load(folder: Path, *, with_checkpoint: bool) -> Resident:
    """The committed version of a model, as a start loads it."""
    store = Store.open(folder)
    ref = store.current()
    digest = store.version_digest(ref)
    kept = gram_checkpoint.read(store.folder_of(ref), version_digest=digest, device="cpu") if with_checkpoint else None
    resident = Resident.load(
        store.manifest,
        store.load_base(),
        store.read_version(ref, digest=digest),
        ref.version,
        Placement("cpu"),
        gram=kept,
    )
    if resident.committed.from_checkpoint is not with_checkpoint:
        raise SystemExit("The checkpoint was not used as it should be.")
    return resident


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Median of the durations of `work`."""
    spent = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        spent.append(time.perf_counter() - started)
    return statistics.median(spent)


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=int, nargs="+", default=[512, 1433, 4000])
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print(
        f"{device_name(torch.device('cpu'))}, {datetime.now(UTC):%Y-%m-%d}, "
        f"load {os.getloadavg()[1]:.1f}, medians of {options.repeats}\n"
    )
    print("| n x d | file MiB | written in s | start without s | start with s | saved |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for width in options.features:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "model"
            graph = load_dataset(f"synthetic:n={2 * width},d={width},classes=3,seed=0", data_dirs=[])
            # The factors do not depend on the weights, so these may be quick to train.
            spec = ModelSpec(regularization=1.0)
            build_model(graph, spec, name="start", dataset="synthetic", split="full").write(folder)
            store = Store.open(folder)
            ref, gram = store.current(), load(folder, with_checkpoint=False).committed.state.features.gram
            place, digest = store.folder_of(ref), store.version_digest(ref)
            written = seconds(lambda: list(gram_checkpoint.write_steps(place, gram, version_digest=digest)), 1)  # noqa: B023 - called at once
            size = (place / gram_checkpoint.FILE).stat().st_size / (1 << 20)
            without = seconds(lambda: load(folder, with_checkpoint=False), options.repeats)  # noqa: B023
            with_it = seconds(lambda: load(folder, with_checkpoint=True), options.repeats)  # noqa: B023
            print(
                f"| {graph.nodes:,} x {width:,} | {size:.0f} | {written:.2f} | {without:.2f} | {with_it:.2f} | "
                f"{1 - with_it / without:.0%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
