"""Time and memory of reading a table of nodes and a table of edges, in a process of its own.

Ids are strings, features float32, edges random and in one direction each; self loops and repetitions are dropped and
merged. The peak is of all memory of the process, including the libraries.

    python -m benchmarks.performance.scale.read_tables [--nodes 2000000] [--edges 60000000] [--features 16]
        [--format parquet] [--folder DIR]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv, feather, parquet

_BLOCK = 1 << 22
_GIB = 1 << 30


def main() -> None:
    """Write the tables, read them in a child, and print a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2_000_000)
    parser.add_argument("--edges", type=int, default=60_000_000)
    parser.add_argument("--features", type=int, default=16)
    parser.add_argument("--format", choices=["parquet", "feather", "csv"], default="parquet")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--read", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        _read(options.folder, options.format)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        _write(Path(folder), options.format, options.nodes, options.edges, options.features)
        command = [sys.executable, "-m", "benchmarks.performance.scale.read_tables", "--read"]
        subprocess.run([*command, "--folder", folder, "--format", options.format], check=True)


def _write(folder: Path, suffix: str, nodes: int, edges: int, features: int) -> None:
    rng = np.random.default_rng(0)
    ids = pa.array([f"user-{row:08d}" for row in range(nodes)])
    columns = {f"x{place}": pa.array(rng.normal(size=nodes).astype(np.float32)) for place in range(features)}
    label = pa.array(rng.integers(0, 47, nodes), mask=rng.random(nodes) < 0.9)
    _save(pa.table({"id": ids, **columns, "label": label}), folder / f"nodes.{suffix}")
    parts = []
    for first in range(0, edges, _BLOCK):
        ends = rng.integers(0, nodes, (2, min(_BLOCK, edges - first)))
        parts.append(pa.table({"source": ids.take(pa.array(ends[0])), "target": ids.take(pa.array(ends[1]))}))
    _save(pa.concat_tables(parts), folder / f"edges.{suffix}")


def _save(table: pa.Table, path: Path) -> None:
    if path.suffix == ".parquet":
        parquet.write_table(table, path)
    elif path.suffix == ".feather":
        feather.write_feather(table, str(path))
    else:
        csv.write_csv(table, str(path))


def _read(folder: Path, suffix: str) -> None:
    from model_store.datasets.tables import TableFiles, load_tables
    from projector.graph.tables import TableOptions

    before = _peak()
    files = TableFiles(folder / f"nodes.{suffix}", folder / f"edges.{suffix}", TableOptions(drop_invalid=True))
    started = time.perf_counter()
    graph, report = load_tables(files, dedupe=True, undirected=True)
    seconds = time.perf_counter() - started
    size = sum(path.stat().st_size for path in (files.nodes, folder / f"edges.{suffix}"))
    figures = {
        "format": suffix,
        "gib_of_files": round(size / _GIB, 2),
        "nodes": graph.nodes,
        "edges": graph.edges,
        "self_loops": report.self_loops,
        "merged": report.merged,
        "seconds": round(seconds, 1),
        "gib_before": round(before / _GIB, 2),
        "gib_at_peak": round(_peak() / _GIB, 2),
    }
    print(json.dumps(figures))


def _peak() -> int:
    """Return the most memory that this process has had (bytes)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
