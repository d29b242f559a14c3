"""Measures the paper's claims and gives each a verdict.

An experiment is measured in units (experiment, dataset, method, seed). Each is one line of DATASET/EXPERIMENT.ndjson.
A unit with a line is not measured again; remove the line to repeat it. A unit that exceeds its time limit, 20 minutes
unless `--minutes` sets another, records its partial result.

    ./lethe reproduce                                   every experiment, missing units only
    ./lethe reproduce injection --dataset cora --seeds 1
    ./lethe reproduce report                            one HTML file of the results so far
    ./lethe reproduce --quick                           everything on a small synthetic graph, in its own folder
"""

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.paper.experiments import EXPERIMENTS, SEEDS, plan
from benchmarks.paper.runner import LIMIT_S, reproduce
from benchmarks.report.page import write_page
from service.cli.console import reported
from service.settings import require_known_variables

RESULTS = Path(__file__).parent / "results" / "paper"
_QUICK = "synthetic:n=60,d=12,classes=3,seed=1"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, from `sys.argv` if `arguments` is None."""
    parser = argparse.ArgumentParser(
        prog="lethe reproduce", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", metavar="EXPERIMENT", choices=[*EXPERIMENTS, "report"], help="or report")
    parser.add_argument("--dataset", nargs="+", help="names, files or synthetic:…; default: each experiment's own")
    parser.add_argument("--method", nargs="+", help="default: each experiment's own")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument(
        "--minutes", type=float, default=LIMIT_S / 60, help=f"time limit of a unit; default: {LIMIT_S / 60:g}"
    )
    parser.add_argument("--quick", action="store_true", help="smoke test: a synthetic graph and one seed")
    parser.add_argument("--out", type=Path, help="results folder; default: benchmarks/results/paper")
    options = parser.parse_args(arguments)
    with reported():
        require_known_variables(os.environ)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.out or (Path(temporary) if options.quick else RESULTS)
        if options.what != "report":
            experiments = (options.what,) if options.what else tuple(EXPERIMENTS)
            datasets = tuple(options.dataset) if options.dataset else (_QUICK,) if options.quick else None
            methods = tuple(options.method) if options.method else None
            seeds = 1 if options.quick else options.seeds
            chosen = plan(experiments, datasets, methods, seeds, quick=options.quick)
            if not chosen:
                parser.error("No experiment has such a method on such a dataset.")
            if reproduce(chosen, folder, lambda words: print(words, flush=True), 60 * options.minutes):
                sys.exit(1)
        if options.what == "report" or options.quick:
            page = write_page(folder, folder / "report.html")
            print(page if folder != Path(temporary) else "All of it runs, the report too.")


if __name__ == "__main__":
    # Also ends the measuring process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    main()
