"""Measures the cost of a publication at size: written, mapped, queried by a dedicated process, and blanked.

    .venv/bin/python -m benchmarks.performance.scale.publication --nodes 1000000 --edges 5000000 --classes 40

The model is synthetic, with ids of 7 characters and random edges. Times are processor time. Memory is that of the
reading process, split into its own and its mapped memory, which all readers share.
"""

import argparse
import itertools
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from model_store.versions import VersionRef
from projector.graph.edges import Edges
from projector.graph.external_ids import NodeIds
from service.domain.snapshot import Snapshot
from service.predictions.facts import ModelFacts, VersionFacts
from service.predictions.layout import Layout
from service.predictions.reader import Reader
from service.predictions.writer import PublishedModel, Publisher

#: Nodes deleted by the second version, and numbers of ids and pairs queried.
_DELETED = 1_000
_ASKED = 10_000
_REPEATS = 5


def main() -> None:
    """Measure and print one JSON object: milliseconds and microseconds of processor time, megabytes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=5_000_000)
    parser.add_argument("--classes", type=int, default=40)
    parser.add_argument("--share", type=Path, default=Path("/dev/shm"))
    given = parser.parse_args()
    rng = np.random.default_rng(7)
    model, first = made_up(given.nodes, given.edges, given.classes, rng)
    deleted = np.sort(rng.choice(given.nodes, _DELETED, replace=False))
    live = first.live.copy()
    live[deleted] = False
    second = Snapshot(2, np.where(live[:, None], first.probabilities, 0.0), live, Edges(first.edges.adjacency, live))
    found: dict[str, object] = vars(given) | {"share": str(given.share)}
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory(dir=given.share) as share:
        publisher = Publisher(Path(home), Path(share))
        one, two = VersionRef(1, 1), VersionRef(2, 1)
        found["load_ms"] = _timed(lambda: publisher.load(one, model, first, facts_of(first), 1))
        found["files_mb"] = _megabytes(Layout.all_of(Path(home))[0].path)
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        process = multiprocessing.get_context("spawn").Process(target=_read, args=(theirs, home, given.nodes))
        process.start()
        ours.recv()
        found["write_ms"] = _timed(lambda: publisher.write(two, second, facts_of(second), of=one))
        found["show_ms"] = _timed(lambda: publisher.show(two, 1))
        ours.send(None)
        found |= ours.recv()
        found["erase_ms"] = _timed(lambda: publisher.erase(two, deleted, np.empty((0, 2), dtype=np.int64)))
        found["remove_older_ms"] = _timed(lambda: publisher.remove_older(two))
        process.join()
    print(json.dumps(found, indent=1))


def made_up(nodes: int, edges: int, classes: int, rng: np.random.Generator) -> tuple[PublishedModel, Snapshot]:
    """Return a model, and a snapshot of its first version, with random predictions and edges."""
    facts = ModelFacts(
        "made up", nodes, 1, tuple(f"class {k}" for k in range(classes)), 2, "last", "sym", "softmax", 1e-4, 1.0
    )
    ends = rng.integers(0, nodes, size=(edges, 2))
    ends = ends[ends[:, 0] != ends[:, 1]]
    both = np.concatenate([ends, ends[:, ::-1]])
    adjacency = sp.csr_array((np.ones(len(both)), (both[:, 0], both[:, 1])), shape=(nodes, nodes))
    adjacency.sort_indices()
    live = np.ones(nodes, dtype=np.bool_)
    probabilities = rng.random((nodes, classes))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    ids = NodeIds.of(f"u{row:06}" for row in range(nodes))
    return PublishedModel(facts, None, ids, ~live), Snapshot(1, probabilities, live, Edges(adjacency, live))


def facts_of(snapshot: Snapshot) -> VersionFacts:
    """Return the facts of a made-up version."""
    return VersionFacts(
        snapshot.version, int(snapshot.live.sum()), snapshot.edges.adjacency.nnz // 2, 1, 0.0, 0.0, "cpu"
    )


def _read(pipe: Connection, home: str, nodes: int) -> None:
    """Run the reading process: version 1, then version 2."""
    rng = np.random.default_rng(8)
    asked = [f"u{row:06}" for row in rng.integers(0, nodes, size=_ASKED)]
    reader, start = Reader(Path(home)), _memory()
    reader.admit(1)
    found: dict[str, object] = {"open_ms": _timed(lambda: reader.facts)}
    found["predict_us"] = _each(lambda: [reader.predict_many([node]) for node in asked])
    found["predict_many_us"] = _each(lambda: reader.predict_many(asked))
    found["unknown_us"] = _each(lambda: [reader.predict_many([f"x{node}"]) for node in asked])
    found["have_edges_us"] = _each(lambda: reader.look_up((), list(itertools.pairwise(asked))))
    pipe.send(None)
    pipe.recv()
    before = _memory()
    found["swap_ms"] = _timed(lambda: reader.facts)
    found |= {"start_mb": start, "before_swap_mb": before, "after_swap_mb": _memory()}
    for node in [f"u{row:06}" for row in range(nodes)]:
        reader.predict_many([node])
    pipe.send(found | {"all_touched_mb": _memory()})


def _timed(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return round((time.process_time() - began) * 1e3, 2)


def _each(work: Callable[[], object]) -> float:
    """Return microseconds for each id or pair, the median of a few."""
    return round(statistics.median(_timed(work) for _ in range(_REPEATS)) * 1e3 / _ASKED, 2)


def _memory() -> dict[str, float]:
    """Return resident megabytes of this process: its own, mapped files, and shared."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    names = {"own": "RssAnon", "files": "RssFile", "shared": "RssShmem"}
    return {name: round(int(lines[field].split()[0]) / 1024, 1) for name, field in names.items()}


def _megabytes(folder: Path) -> dict[str, float]:
    return {
        f"{path.parent.parent.name}/{path.name}": round(path.stat().st_size / 2**20, 1)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


if __name__ == "__main__":
    main()
