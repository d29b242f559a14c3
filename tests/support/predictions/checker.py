"""Checks that no prediction comes from a version older than a known applied one, and that processes recover.

    python -m tests.support.predictions.checker [--deletions 200] [--kills 20] [--stops 20] [--seed 0]
        [--only SCENARIO …] [--mutant MUTANT] [--out FOLDER]

A service over its own real servers runs each scenario of `scenarios.py` while four processes request predictions
without a pause. The script prints questions and answers, and exits with 1 if an answer was stale or a process did not
recover. With a mutant, that is the expected result.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from service.processes.private_servers import Embedded
from tests.support.predictions.ground import Ground, Servers, trained
from tests.support.predictions.mutants import MUTANTS
from tests.support.predictions.scenarios import SCENARIOS, Effort, assert_good, seeded
from tests.support.preloaded import Preloaded, service_preloaded


def main() -> None:
    """Run the scenarios one by one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    full = Effort()
    parser.add_argument("--deletions", type=int, default=full.deletions)
    parser.add_argument("--kills", type=int, default=full.kills, help="of each part")
    parser.add_argument("--stops", type=int, default=full.stops, help="of each part")
    parser.add_argument("--seed", type=int, default=seeded())
    parser.add_argument("--only", nargs="+", choices=list(SCENARIOS), default=list(SCENARIOS))
    parser.add_argument("--mutant", choices=list(MUTANTS))
    parser.add_argument("--out", type=Path, help="folder for homes and logs, kept afterwards; it must not exist")
    options = parser.parse_args()
    effort = Effort(options.deletions, options.kills, options.stops, seed=options.seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.out or Path(temporary) / "checked"
        folder.mkdir(parents=True)
        preloaded = service_preloaded()
        try:
            failed = [name for name in options.only if not _passes(name, effort, options.mutant, folder, preloaded)]
        finally:
            preloaded.close()
    raise SystemExit(f"Failed: {', '.join(failed)}" if failed else 0)


def _passes(name: str, effort: Effort, mutant: str | None, folder: Path, preloaded: Preloaded) -> bool:
    """Run one scenario on its own servers."""
    began, own = time.monotonic(), folder / name
    own.mkdir()

    def announce(what: str) -> None:
        print(f"  {time.monotonic() - began:6.1f} s  {what}", file=sys.stderr, flush=True)

    with Embedded(own / "servers", durable=False) as urls:
        assert urls.database_url is not None
        assert urls.redis_url is not None
        servers = Servers(urls.database_url, urls.redis_url, own / "servers")
        ground = Ground(preloaded, trained(folder / "model"), own, servers, mutant)
        try:
            verdict = SCENARIOS[name](ground, effort, announce)
            print(f"{name}, {time.monotonic() - began:.0f} s: {verdict}", flush=True)
            assert_good(verdict)
        except AssertionError as error:
            print(f"{name} failed: {error}", flush=True)
            return False
    return True


if __name__ == "__main__":
    main()
