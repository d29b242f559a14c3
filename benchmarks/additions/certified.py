"""Measures the accuracy cost of certified publication: an unlearned model as it is, and published with noise.

The script deletes one percent of the training nodes. Under each promise it then publishes the weights 20 times, as for
20 versions, and classifies the remaining test nodes with the published weights. The draws are fixed, so the same
command gives the same figures, except for the times.

    python -m benchmarks.additions.certified [--dataset cora …] [--publications 10000] [--tolerance 1e-8]
    python -m benchmarks.additions.certified --cost [--dataset cora …]

The second command times a batch of one node, with noise and without, on two copies of one model in turn. A batch is
computed, repaired, written to disk and used for predictions. The noise is drawn in idle time before, as in the service.
"""

import argparse
import hashlib
import math
import os
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import t

from benchmarks.device import device_name
from benchmarks.paper.setting import ARXIV, SMALL, drawn
from model_store.build import build_model
from model_store.datasets.load import default_data_dirs, load_dataset
from model_store.store import Store
from model_store.versions import VersionRef
from projector import Certificate, ModelSpec, fit
from projector.certified.gaussian import success
from projector.certified.mechanism import calibrate, published, radius
from projector.certified.publication import Mechanism, Promise
from projector.forgetting.batch import Removal
from projector.forgetting.optimum import stacked
from projector.forgetting.status import TOLERANCE
from projector.forgetting.update import HeldModel
from projector.graph.graph import Graph
from projector.network.spec import LossKind
from service.domain.states import RepairPolicy
from service.unlearner.committed import version_state
from service.unlearner.placement import Placement
from service.unlearner.resident import Resident

PROMISES = ((1.0, 1e-4), (0.1, 1e-6))
DRAWS = 20
_COLUMNS = (
    "dataset", "loss", "epsilon", "delta", "observer right, at most", "cap", "sigma", "noise / weights", "accuracy, %",
    "with noise, points", "deviation", "answers changed, %", "noise, ms",
)  # fmt: skip


def unlearned(graph: Graph, spec: ModelSpec) -> tuple[HeldModel, Certificate]:
    """Return the model without one percent of its training nodes, and its proven distance from retraining."""
    model, report = fit(graph, spec).forget(nodes=drawn(graph, 0.01, seed=0))
    if report.bound_after is None:
        raise SystemExit(f"{spec.loss.value} has no bound.")
    return model._held, report.bound_after


def answers(held: HeldModel, W: torch.Tensor, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the classes that weights W (p, C) predict for `nodes`."""
    logits = held.live_graph.representation().logits_at_first(W)
    return np.asarray(logits[torch.from_numpy(nodes)].argmax(dim=1).numpy())


def row(name: str, graph: Graph, spec: ModelSpec, held: HeldModel, certificate: Certificate, made: Mechanism) -> str:
    """Return the cells after the promise: the published weights and their answers."""
    W = stacked(held.state)
    nodes = np.flatnonzero(graph.test_mask & held.state.live)
    exact, right = answers(held, W, nodes), graph.labels[nodes]
    moved, changed, took = [], [], []
    for version in range(DRAWS):
        secret = hashlib.sha256(f"{name} {spec.loss.value}".encode()).digest()
        began = time.perf_counter()
        noisy = published(made, W, certificate, secret, version)
        took.append(1000 * (time.perf_counter() - began))
        found = answers(held, noisy, nodes)
        moved.append(100 * float((found == right).mean() - (exact == right).mean()))
        changed.append(100 * float((found != exact).mean()))
    half = float(t.ppf(0.975, DRAWS - 1)) * float(np.std(moved, ddof=1)) / math.sqrt(DRAWS)
    share = made.sigma * math.sqrt(W.numel()) / float(torch.linalg.norm(W))
    return (
        f"{math.ceil(1000 * success(made.budget)) / 10:.1f} % | {made.cap:.1e} | {made.sigma:.1e} | {share:.1e} | "
        f"{100 * float((exact == right).mean()):.2f} | {np.mean(moved):+.3f} ± {half:.3f} | "
        f"{np.std(moved, ddof=1):.3f} | {np.mean(changed):.2f} | {median(took):.1f}"
    )


def residents(name: str, folder: Path) -> list[tuple[Store, Resident]]:
    """Return two copies of one model: the first publishes without noise, the second with noise."""
    graph = load_dataset(name, data_dirs=default_data_dirs(os.environ))
    model = build_model(graph, ModelSpec(hops=3 if name == ARXIV else 2), name=name, dataset=name, split="full")
    made = []
    for promise in (None, Promise(*PROMISES[0], 10_000)):
        store = model.write(folder / f"{promise is None}")
        version = store.read_version(store.current())
        placement = Placement("cpu", RepairPolicy.ALWAYS, promise=promise)
        made.append((store, Resident.load(store.manifest, store.load_base(), version, 0, placement)))
    return made


def batch(store: Store, resident: Resident, node: int) -> float:
    """Time one deletion until its version could be committed, in milliseconds, and then commit it untimed."""
    if resident.draw_due:
        resident.draw_ahead()
    if resident.prefactor_due:
        resident.preconditioner_cache.advance(math.inf)
    began = time.perf_counter()
    prepared = resident.prepare([Removal(nodes=np.array([node]))])
    state = version_state(prepared.state, prepared.publication)
    ref = VersionRef(prepared.state.version, 1)
    store.write_version(ref, state, edges=prepared.live_graph.edges, beta_version=ref.version)
    took = 1000 * (time.perf_counter() - began)
    resident.commit(prepared)
    store.set_current(ref)
    return took


def cost(name: str, batches: int = 40) -> str:
    """Return how much longer a batch takes with noise: the median ratio of pairs, and its quartiles."""
    with tempfile.TemporaryDirectory() as folder:
        exact, noisy = residents(name, Path(folder))
        nodes = np.random.default_rng(0).permutation(exact[0].manifest.nodes)[:batches].tolist()
        took = []
        for turn, node in enumerate(nodes):
            pair = [batch(*which, node) for which in ((exact, noisy) if turn % 2 else (noisy, exact))]
            took.append(pair if turn % 2 else pair[::-1])
    ratios = np.array([with_noise / without for without, with_noise in took])
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    return f"| {name} | {median(without for without, _ in took):.1f} | {middle:.3f} | {low:.3f} to {high:.3f} |"


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", nargs="+", default=[*SMALL, ARXIV])
    parser.add_argument("--loss", nargs="+", default=["softmax"], choices=["softmax", "ovr", "hinge"])
    parser.add_argument("--publications", type=int, default=10_000)
    parser.add_argument("--tolerance", type=float, default=TOLERANCE)
    parser.add_argument("--cost", action="store_true")
    options = parser.parse_args()
    if options.cost:
        print(f"{device_name(torch.device('cpu'))}, {datetime.now(UTC):%Y-%m-%d}, load {os.getloadavg()[0]:.1f}")
        print("| dataset | without, ms | with / without | quartiles |\n| --- | ---: | ---: | ---: |")
        for name in options.dataset:
            print(cost(name), flush=True)
        return
    print(
        f"{device_name(torch.device('cpu'))}, {datetime.now(UTC):%Y-%m-%d}, {options.publications} publications, "
        f"tolerance {options.tolerance:g}, {DRAWS} draws, load {os.getloadavg()[0]:.1f}"
    )
    print(f"| {' | '.join(_COLUMNS)} |\n| --- | --- |{' ---: |' * (len(_COLUMNS) - 2)}")
    for name in options.dataset:
        graph = load_dataset(name, data_dirs=default_data_dirs(os.environ))
        for loss in map(LossKind, options.loss):
            spec = ModelSpec(loss=loss, hops=3 if name == ARXIV else 2)
            held, certificate = unlearned(graph, spec)
            W = stacked(held.state)
            R = radius(held.live_graph.loss, graph.num_classes, spec.regularization)
            for epsilon, delta in PROMISES:
                made = calibrate(Promise(epsilon, delta, options.publications), R, W.numel(), options.tolerance)
                rest = row(name, graph, spec, held, certificate, made)
                print(f"| {name} | {loss.value} | {epsilon:g} | {delta:g} | {rest} |", flush=True)


if __name__ == "__main__":
    main()
