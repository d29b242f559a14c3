"""Traces of added nodes: none in clear while the addition is queued, and none after a deletion."""

import json
import secrets
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lethe_client import Correction, NewNode
from model_store.datasets.load import load_dataset
from tests.support.clients.command_line import CommandLine
from tests.support.preloaded import Start
from tests.support.processes.lethe_process import LetheProcess
from tests.support.service.people import FEATURES, private_graph

#: How long a batch waits for more requests, so that an addition stays queued during a search (milliseconds).
QUEUED_MS = 8_000


@pytest.fixture
def lethe(tmp_path: Path, lethe_start: Start) -> Iterator[LetheProcess]:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    people = private_graph(tmp_path / "people.npz")
    with LetheProcess(
        lethe_start, home, dataset=people, max_wait_ms=QUEUED_MS, repair="always", repair_budget=300
    ) as process:
        yield process


def test_the_search_finds_every_form_of_a_person(tmp_path: Path) -> None:
    node, features = secrets.token_hex(16), np.random.default_rng(9).standard_normal(FEATURES).astype(np.float32)
    body = json.dumps({"id": node, "features": features.astype(np.float64).tolist()}, separators=(",", ":")).encode()
    home = tmp_path / "home"
    home.mkdir()
    forms = {"": body, "in hex": body.hex().encode()}
    forms |= {f"in base64 after {start}": b64encode(bytes(start) + body) for start in range(3)}
    for form, content in forms.items():
        (home / "file").write_bytes(content)
        assert {name.split(",")[0] for name in found(home, node, features)} >= {"id", "features as text"}, form
    (home / "file").write_bytes(b"")
    (tmp_path / "home.log").write_bytes(features.tobytes())
    assert found(home, node, features) == {"two features"}


def found(home: Path, node: str, features: NDArray[np.float32]) -> set[str]:
    """Return the kinds of trace of a node in the files below `home`, the servers' included."""
    numbers = features.astype(np.float64).tolist()
    plain = {
        "id": node.encode(),
        "features as text": ",".join(map(repr, numbers[:2])).encode(),
        "a feature as text": repr(numbers[0]).encode(),
        "two features": features[:2].tobytes(),
        "two features in float64": features[:2].astype(np.float64).tobytes(),
    }
    traces = plain | {f"{kind}, in hex": trace.hex().encode() for kind, trace in plain.items()}
    # The letters depend on the place of the first byte among three.
    traces |= {
        f"{kind}, in base64 from byte {start}": b64encode(trace[start : len(trace) - (len(trace) - start) % 3])
        for kind, trace in plain.items()
        for start in range(3)
    }
    contents = []
    # Beside the home is what the processes print.
    for file in (*home.rglob("*"), *home.parent.glob("*.log")):
        try:
            contents.append(file.read_bytes() if file.is_file() else b"")
        except FileNotFoundError:
            continue  # a running Postgres removes its own files meanwhile
    return {kind for kind, trace in traces.items() if any(trace in content for content in contents)}


@pytest.mark.ci
def test_an_added_person_is_in_no_file_before_joining_and_after_leaving(
    lethe: LetheProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lethe.start()
    node, features = secrets.token_hex(16), np.random.default_rng(9).standard_normal(FEATURES).astype(np.float32)
    numbers, other = features.astype(np.float64).tolist(), (features[::-1] / 2).astype(np.float64).tolist()
    somebody = load_dataset(str(tmp_path / "people.npz"), data_dirs=[]).node_ids[3]
    with lethe.client() as client:
        addition = client.add([NewNode(node, numbers)])
        # In the database, its write-ahead log, Redis and all logs, but only encrypted.
        assert found(lethe.home, node, features) == set()
        assert client.deletion(addition.id).status == "queued"
        cancelled = client.add([NewNode(node, numbers)])
        assert client.cancel(cancelled.id, "addition").status == "cancelled"
        client.correct([Correction(somebody, other)])
        assert found(lethe.home, node, np.array(other, dtype=np.float32)) == set()
        client.wait(addition.id, timeout_s=60)
        # The search finds what is there.
        assert {"id", "two features"} <= found(lethe.model, node, features)
        client.wait(client.request_deletion([node]).id, timeout_s=60)
    assert found(lethe.home, node, features) == set()
    assert lethe.stop().status == 0
    assert found(lethe.home, node, features) == set()

    ids, rows = tmp_path / "searched.txt", tmp_path / "searched.npy"
    ids.write_text(f"{node}\n")
    np.save(rows, features[None, :])
    searched = CommandLine(capsys)("audit", "leftovers", "--home", lethe.home, "--ids", ids, "--features", rows)
    assert searched.status == 0, searched.stdout
    assert searched.stdout.startswith("0 traces in ")
