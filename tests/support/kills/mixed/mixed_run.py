"""The program `python -m tests.support.kills.mixed.mixed_run`: mixed requests from several clients, through many kills.

A `lethe serve` with its own servers gets additions, corrections, and deletions of nodes, features, labels and edges,
some of them twice, cancelled, repeated, or about what is still queued. Meanwhile each of its parts is killed or
stopped at every failure point. In the end, each accepted request was applied once, was cancelled, or has failed with a
reason; graph, weights and predictions are those that an independent fit gives; and nothing is left of what was deleted.

    python -m tests.support.kills.mixed.mixed_run [--dataset cora] [--requests 200] [--kills 8] [--seed 0]
"""

import argparse
import asyncio
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model_store.build import build_model
from model_store.datasets.load import default_data_dirs, load_dataset
from projector.graph.graph import Graph
from projector.network.spec import ModelSpec
from service.access.api_keys import ApiKeyRepository, new_api_key
from service.access.keyring import Keyring
from service.db.engine import create_engine
from service.db.transactions import transaction
from service.domain.scopes import Scope
from service.failure_points import FailurePoint
from tests.support.kills.deletions import copied_home, template_of
from tests.support.kills.doomed_process import DoomedLethe
from tests.support.kills.faults import START_POINTS, WEBHOOK_POINTS, Action, Fault
from tests.support.kills.mixed.bookkeeping import Expected
from tests.support.kills.mixed.drawn_requests import Drawing
from tests.support.kills.mixed.mixed_checks import Ending
from tests.support.kills.mixed.mixed_clients import PATIENCE_S, Client, Through
from tests.support.preloaded import Preloaded, service_preloaded
from tests.support.processes.lethe_process import KEY
from tests.support.processes.workers import free_port
from tests.support.service.homes import private_database

#: Every part of a Lethe is killed, and stopped as an operator would; most often the process at the point.
_ACTIONS = (
    *[Action.KILL_IT] * 4,
    *[Action.END_IT] * 3,
    *(Action.KILL_SUPERVISOR, Action.KILL_UNLEARNER, Action.KILL_API, Action.KILL_POSTGRES, Action.KILL_VALKEY),
    *(Action.END_SUPERVISOR, Action.END_UNLEARNER, Action.END_API, Action.END_POSTGRES, Action.END_VALKEY),
    Action.EMPTY_VALKEY,
)
#: Points that no batch, start or cancellation passes.
_ELSEWHERE = {FailurePoint.INSTALLED, *WEBHOOK_POINTS}
#: Requests of the full run, and kills and stops in it.
REQUESTS, KILLS = 2_000, 60
_WRITE = (Scope.GRAPH_WRITE, Scope.DELETIONS_WRITE)


@dataclass(frozen=True)
class Effort:
    """The size of a run."""

    requests: int = REQUESTS
    kills: int = KILLS
    clients: int = 8
    seed: int = 0


def drawn_faults(count: int, seed: int) -> list[Fault]:
    """Return faults at every failure point in turn, in random order, by every action in turn."""
    rng = random.Random(seed)
    everywhere = [point for point in FailurePoint if point not in _ELSEWHERE]
    points, actions = list[FailurePoint](), list[Action]()
    while len(points) < count:
        points += rng.sample(everywhere, len(everywhere))
    while len(actions) < count:
        actions += rng.sample(_ACTIONS, len(_ACTIONS))
    faults = list[Fault]()
    for point in points[:count]:
        is_start = point in START_POINTS
        if is_start and not (faults and faults[-1].ends_unlearner):
            # Only a start passes this point.
            earlier = faults.pop() if faults else Fault(Action.KILL_IT, FailurePoint.SWAPPED)
            faults.append(Fault(Action.KILL_UNLEARNER, earlier.point, earlier.occurrence))
        faults.append(Fault(actions.pop(), point, 1 if is_start else rng.randint(1, 3)))
    return faults


class MixedRun:
    """One Lethe, the clients, and what they have asked."""

    def __init__(self, graph: Graph, template: Path, preloaded: Preloaded, folder: Path, effort: Effort) -> None:
        """`template` is a LETHE_HOME that serves an untouched model of `graph`."""
        self.graph, self.effort = graph, effort
        settings: dict[str, Any] = {
            "repair": "always",
            "repair_budget": 5.0,
            "lease_ttl_s": 10.0,
            "api_workers": 2,
            "max_wait_ms": 5,
        }
        home = copied_home(template, folder / "mixed")
        faults = drawn_faults(effort.kills, effort.seed)
        self.lethe = DoomedLethe(preloaded, home, faults, port=free_port(), **settings)
        self.clients: list[Client] = []
        self.stop = threading.Event()

    def run(self) -> Counter[str]:
        """Run to the end and check everything. Returns counts to print."""
        started = time.monotonic()
        try:
            self.lethe.launch_until_ready()
            self._start_clients()
            self._watch()
            sending_s = time.monotonic() - started
            ending = Ending(self.graph, self.lethe, self.clients)
            self._until(lambda: not self.lethe.faults and ending.have_all_ended())
            counts = ending.check()
        finally:
            self.stop.set()
            for client in self.clients:
                client.join()
            self.lethe.give_up()
        assert self.lethe.faults == []
        return counts + Counter({"faults": self.lethe.happened, "seconds of sending": round(sending_s)})

    def _start_clients(self) -> None:
        effort, ids = self.effort, list(self.graph.node_ids)
        random.Random(effort.seed).shuffle(ids)
        # The last share belongs to nobody; all clients delete some of it.
        shares = [ids[number :: effort.clients + 1] for number in range(effort.clients + 1)]
        shared = shares.pop()[:40]
        keys = asyncio.run(_keys_for(private_database(self.lethe), self.lethe.home, effort.clients))
        through = Through(self.lethe.url, self.stop)
        for number, own in enumerate(shares):
            foreign = [node for other, share in enumerate(shares) if other != number for node in share]
            drawing = Drawing(Expected(self.graph), own, shared, foreign, effort.seed * 1_000 + number)
            quota = -(-effort.requests // effort.clients)
            self.clients.append(Client(number, drawing, through, (keys[number], KEY), quota, self._has_faults))
        for client in self.clients:
            client.start()

    def _has_faults(self) -> bool:
        return bool(self.lethe.faults)

    def _watch(self) -> None:
        """Restart Lethe whenever it has ended, until all clients are done."""
        while any(client.is_alive() for client in self.clients):
            self.lethe.revive()
            for client in self.clients:
                if client.error is not None:
                    raise client.error
            time.sleep(0.05)

    def _until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"no end in {PATIENCE_S:.0f} s:\n{self.lethe.log()[-5_000:]}"
            self.lethe.revive()
            time.sleep(0.2)


async def _keys_for(database_url: str, home: Path, count: int) -> list[str]:
    """Create a key for each client; every other may only write."""
    keyring, engine, found = Keyring.open(home / "keys"), create_engine(database_url), []
    for number in range(count):
        made = new_api_key()
        scopes = _WRITE if number % 2 else (*_WRITE, Scope.DELETIONS_READ)
        async with transaction(engine) as connection:
            keys = ApiKeyRepository(connection)
            await keys.create(made.id, f"client-{number}", scopes, keyring.api_key_hash(made.text))
        found.append(made.text)
    await engine.dispose()
    return found


def served(graph: Graph, dataset: str, preloaded: Preloaded, folder: Path) -> Path:
    """Return a LETHE_HOME that has served a model of `graph` once."""
    model = folder / "model"
    build_model(graph, ModelSpec(), name="mixed", dataset=dataset, split="full").write(model)
    return template_of(preloaded, model, folder / "template")


def main() -> None:
    """Run once, and print what was asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="cora")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder for homes and logs, kept afterwards; it must not exist")
    options = parser.parse_args()
    effort = Effort(options.requests, options.kills, options.clients, options.seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.out or Path(temporary) / "mixed"
        folder.mkdir(parents=True)
        preloaded = service_preloaded()
        try:
            graph = load_dataset(options.dataset, data_dirs=default_data_dirs(os.environ))
            template = served(graph, options.dataset, preloaded, folder)
            counts = MixedRun(graph, template, preloaded, folder, effort).run()
        finally:
            preloaded.close()
    print(", ".join(f"{name}: {count}" for name, count in counts.items()), file=sys.stderr)


if __name__ == "__main__":
    main()
