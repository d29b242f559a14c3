"""A byte flips in a file of a stopped home: it is refused by name, reported, repaired, or does no harm."""

import contextlib
import json
import random
from pathlib import Path

import httpx2
import pytest

from tests.support.kills.deletions import People
from tests.support.kills.doomed_process import DoomedLethe
from tests.support.kills.faults import SEED
from tests.support.preloaded import Preloaded
from tests.support.service.bodies import node_body

#: Number of files tried in each part of a home; of a database's thousand files, the largest are always included.
_FILES = 8


def _files(home: Path, part: str, rng: random.Random) -> list[Path]:
    """Return some non-empty files below a part of a home, by their paths in it."""
    found = sorted(path for path in (home / part).rglob("*") if path.is_file() and path.stat().st_size)
    largest = sorted(found, key=lambda path: path.stat().st_size)[-_FILES // 2 :]
    others = [path for path in found if path not in largest]
    return [path.relative_to(home) for path in largest + rng.sample(others, min(len(others), _FILES // 2))]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["model", "keys", "secrets", "run", "postgres", "valkey"])
def test_a_flipped_byte_is_refused_reported_repaired_or_harmless(
    part: str, people: People, preloaded: Preloaded, tmp_path: Path
) -> None:
    rng = random.Random(SEED)
    for number, name in enumerate(_files(people.home(tmp_path / "intact"), part, rng)):
        home = people.home(tmp_path / f"home-{number}")
        data = bytearray((home / name).read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        with (home / name).open("r+b") as file:
            file.write(data)
        home.with_name(f"{home.name}.log").touch()
        lethe = DoomedLethe(preloaded, home, repair="never")
        try:
            lethe.launch()
            _assert_sound_or_reported(lethe, name, people.graph.node_ids[0])
        finally:
            lethe.give_up()


def _assert_sound_or_reported(lethe: DoomedLethe, name: Path, node: str) -> None:
    """Check that it deletes a node, or names the fault: refusing to start, in its log, or in an answer."""
    accepted = ""
    while True:
        try:
            lethe.assert_runs()
        except AssertionError:
            said = lethe.ended().stderr
            assert "error: " in said, f"{name}: {said}"
            assert "Traceback" not in said, f"{name}: {said}"
            return
        if "damaged" in lethe.log():
            return
        with contextlib.suppress(httpx2.TransportError), _reached(lethe) as http:
            if accepted and http.get(accepted).json()["status"] == "completed":
                return
            if not accepted and http.get("/readyz").is_success:
                answer = http.post("/deletions", json=node_body(node))
                assert answer.status_code == httpx2.codes.ACCEPTED, f"{name}: {answer.text}"
                accepted = answer.headers["Location"]
        with contextlib.suppress(AssertionError):  # that it has ended, which is looked at above
            lethe.look_later()


def _reached(lethe: DoomedLethe) -> httpx2.Client:
    """Return a client of the running process, as soon as its address is known; until then requests fail."""
    facts = lethe.home / "run" / "server.json"
    if facts.exists():
        lethe.url = json.loads(facts.read_text())["url"]
    return lethe.http() if lethe.url else httpx2.Client(base_url="http://127.0.0.1:1")
