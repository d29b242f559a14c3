"""Downloads of all predictions while deletions arrive: each is of one version and leaves nothing behind."""

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from lethe_client.results import Prediction
from tests.support.models.recomputation import Recomputation
from tests.support.models.trained_models import Models
from tests.support.processes.lethe_process import LetheProcess, version_of
from tests.support.service.people import private_graph

pytestmark = pytest.mark.ci

DELETIONS = 6


@dataclass(frozen=True)
class Downloaded:
    """A file, and how many deletions had been reported `applied` before it was requested."""

    known: int
    predictions: list[Prediction]


def held(lethe: LetheProcess, node: str) -> list[str]:
    """Return where an id is: in files below LETHE_HOME, and in those that the answering process has open."""
    opened = Path(f"/proc/{lethe.pid_of('api-0')}/fd").iterdir()
    found = []
    for path in (*lethe.home.rglob("*"), *opened):
        # Files are replaced and closed meanwhile.
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and node.encode() in path.read_bytes():
                found.append(str(path))
    return found


def test_each_download_is_of_one_version_and_no_completed_node_is_left_anywhere(
    models: Models, serve: Callable[..., LetheProcess], tmp_path: Path
) -> None:
    people = str(private_graph(tmp_path / "people.npz"))
    lethe = serve(models.trained(people), max_wait_ms=0)
    scratch = Recomputation(lethe.model, models.graph(people))
    nodes = list(scratch.graph.node_ids)
    assert held(lethe, nodes[0])
    applied, downloads, stopping = list[int](), list[Downloaded](), threading.Event()

    def download() -> None:
        with lethe.client() as client:
            while not stopping.is_set():
                known = len(applied)
                lines = b"".join(client.predictions()).splitlines()
                downloads.append(Downloaded(known, [msgspec.json.decode(line, type=Prediction) for line in lines]))

    with ThreadPoolExecutor(1) as pool, lethe.client() as client:
        running = pool.submit(download)
        try:
            for node in nodes[:DELETIONS]:
                accepted = client.request_deletion([node])
                applied.append(version_of(client.wait(accepted.id, "applied")))
                client.wait(accepted.id)
                assert held(lethe, node) == []
        finally:
            stopping.set()
        running.result()

    versions = set[int]()
    for one in downloads:
        [version] = {prediction.model_version for prediction in one.predictions}
        gone = nodes[: sum(made <= version for made in applied)]
        assert len(gone) >= one.known
        assert [prediction.node for prediction in one.predictions] == nodes[len(gone) :]
        if version not in versions:
            assert scratch.error(one.predictions, scratch.probabilities(gone, scratch.weights(gone))) <= 1e-9
        versions.add(version)
    assert len(versions) >= DELETIONS // 2
