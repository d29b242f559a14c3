"""What must hold after a run of mixed requests: of the requests, the log, the store, the weights and the disk."""

import asyncio
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from lethe_client import LetheClient
from lethe_client.results import Deletion, Predictions
from model_store.store import Store
from projector.graph.graph import Graph, feature_rows
from service.processes.supervisor import MAY_PASS
from tests.support.kills.deletions import assert_log_is_whole, keys_left
from tests.support.kills.doomed_process import DoomedLethe
from tests.support.kills.mixed.bookkeeping import NONE, Expected, Fitted, fitted, ordered
from tests.support.kills.mixed.drawn_requests import MARKER, PREFIX
from tests.support.kills.mixed.mixed_clients import ENDED, Client
from tests.support.processes.lethe_process import KEY, weights_on_disk
from tests.support.service.homes import private_database
from tests.support.service.repair_world import Served, events, query

#: Why a request may fail.
_REASONS = re.compile(
    r"A node that it adds is in the graph already\.|An edge that it adds is in the graph already\."
    r"|An edge ends at a node that (was deleted|is not in the graph)\.|A node that it corrects is not in the graph\."
    r"|\d+ of the nodes or edges in this request are not in the model\."
)
#: Events of a request that has ended, beside `repaired`.
_EVENTS = {
    "completed": (["applied", "completed"], ["completed"]),
    "cancelled": ([],),
    "failed": (["failed"], ["failed", "handled"]),
}
#: Nodes per request of predictions.
_PAGE = 2_000


class Ending:
    """A Lethe whose clients have sent everything."""

    def __init__(self, graph: Graph, lethe: DoomedLethe, clients: Sequence[Client]) -> None:
        self._graph = graph
        self._lethe = lethe
        self._clients = clients
        self._states: dict[str, Deletion] = {}

    def have_all_ended(self) -> bool:
        """Whether all requests have ended, and nothing is left to repair."""
        for client in self._clients:
            for sent in client.sent:
                known = self._states.get(sent.id)
                # A later request may settle a failed one.
                if known is None or known.status not in ENDED - {"failed"} or known.repair == "pending":
                    found = self._states[sent.id] = client.state(sent)
                    if found.status not in ENDED or found.repair == "pending":
                        return False
        # Until it is settled, a failed request may be retried.
        failed = sum(state.status == "failed" and state.handled_at is None for state in self._states.values())
        return keys_left(self._lethe.home) == failed and Served(self._lethe.model).is_tidy()

    def check(self) -> Counter[str]:
        """Check everything; restarts Lethe once. Returns counts to print."""
        self._check_requests()
        expected = Expected(self._graph)
        for client in self._clients:
            expected.follow(sent.asked for sent in client.sent if self._states[sent.id].status == "completed")
        asyncio.run(self._check_database(private_database(self._lethe)))
        self._check_store(expected)
        spec = Store.open(self._lethe.model).manifest.spec
        fit = fitted(expected, spec)
        self._check_weights(fit)
        before = self._predicted(expected, fit)
        assert self._lethe.stop().status == 0
        files, tombstones = stored(self._lethe.model), Store.open(self._lethe.model).tombstones().hashes
        self._check_disk(expected)
        self._lethe.launch_until_ready()
        assert self._predicted(expected, fit) == before
        assert self._lethe.stop().status == 0
        assert stored(self._lethe.model) == files
        # A start leaves out those of who joined again.
        assert Store.open(self._lethe.model).tombstones().hashes <= tombstones
        self._check_log_of_processes()
        return self._counts(expected)

    def _check_requests(self) -> None:
        for client in self._clients:
            assert len({sent.id for sent in client.sent}) == len(client.sent)
            for sent in client.sent:
                state = self._states[sent.id]
                assert state.status in ENDED, state
                if state.status == "failed":
                    assert state.failure is not None
                    assert _REASONS.match(state.failure), state
                if state.audit is not None:
                    assert (state.repair, state.guarantee) == ("converged", "retrained"), state

    async def _check_database(self, url: str) -> None:
        recorded = await events(url)
        for client in self._clients:
            for sent in client.sent:
                status = self._states[sent.id].status
                found = sorted(recorded.get(sent.id, []))
                if found.count("repaired") == 1 and status == "completed":
                    found.remove("repaired")
                assert found in _EVENTS[status], (status, found)
        ids = {sent.id for client in self._clients for sent in client.sent}
        assert {str(request) for (request,) in await query(url, "SELECT id FROM requests")} == ids
        [(count,)] = await query(url, "SELECT count(*) FROM events")
        await assert_log_is_whole(url, count)
        [left] = await query(
            url,
            "SELECT (SELECT count(*) FROM outbox), "
            "(SELECT count(*) FROM queued_joins JOIN requests r ON r.id = request_id WHERE r.status <> 'failed'), "
            "(SELECT count(ciphertext) FROM requests WHERE status <> 'failed' OR handled_at IS NOT NULL), "
            "(SELECT count(*) FROM versions WHERE finished_at IS NULL)",
        )
        assert left == (0, 0, 0, 0)

    def _check_store(self, expected: Expected) -> None:
        """The graph on disk is the expected one, to the last digit."""
        base = Store.open(self._lethe.model).load_base().graph
        rows = {node: row for row, node in enumerate(base.node_ids) if node in expected.nodes}
        assert set(rows) == set(expected.nodes)
        names = list(base.node_ids)
        pairs = zip(*base.adjacency.nonzero(), strict=True)
        edges = {ordered(names[left], names[right]) for left, right in pairs}
        assert edges == expected.edges, (sorted(edges - expected.edges)[:5], sorted(expected.edges - edges)[:5])
        X = feature_rows(base.features, np.arange(base.nodes))
        nothing = np.zeros(expected.columns)
        for node, each in expected.nodes.items():
            row = rows[node]
            assert np.array_equal(X[row], nothing if each.features is None else each.features), node
            assert (int(base.labels[row]) if base.train_mask[row] else NONE) == each.label, node
        others = np.setdiff1d(np.arange(base.nodes), np.array([*rows.values()]))
        assert not np.any(X[others])
        assert not base.train_mask[others].any()

    def _check_weights(self, fit: Fitted) -> None:
        weights = weights_on_disk(self._lethe.model)[0]
        with LetheClient(self._lethe.url, KEY) as client:
            served = client.model()
        assert served.distance_bound is not None
        distance = float(np.linalg.norm(weights - fit.weights))
        assert distance <= served.distance_bound + fit.error
        assert distance <= 1e-6 * np.linalg.norm(fit.weights)

    def _predicted(self, expected: Expected, fit: Fitted) -> list[Predictions]:
        """Return all predictions, compared with those of the fit."""
        asked = sorted(expected.ever | expected.gone | {f"{PREFIX}never"})
        names, found = expected.classes, list[Predictions]()
        known = set[str]()
        with LetheClient(self._lethe.url, KEY, timeout_s=60.0) as client:
            for begin in range(0, len(asked), _PAGE):
                answer = client.predict_many(asked[begin : begin + _PAGE])
                assert set(answer.deleted) <= expected.gone
                assert set(answer.unknown) <= {f"{PREFIX}never"}
                for one in answer.predictions:
                    known.add(one.node)
                    probabilities = np.array([one.probabilities[name] for name in names])
                    assert np.abs(probabilities - fit.probabilities[one.node]).max() <= 1e-6
                found.append(answer)
        assert known == set(expected.nodes)
        return found

    def _check_disk(self, expected: Expected) -> None:
        """No file has an id of a person who left, nor a row that was replaced or left; those who stay are found."""
        left = {node.encode() for client in self._clients for sent in client.sent for node in sent.asked.content}
        left -= {node.encode() for node in expected.nodes}
        found_ids = set[bytes]()
        for file in self._lethe.home.rglob("*"):
            if not file.is_file():
                continue
            content = file.read_bytes()
            found = {*_ids(content)}
            assert not found & left, file
            found_ids |= found
            assert repr(MARKER).encode() not in content, file
            if not re.match(r"(late_)?features\.values-|edit\.safetensors", file.name):
                assert not any(map(_is_of_a_row, _after_markers(content))), file
        assert found_ids == {node.encode() for node in expected.nodes if node.startswith(PREFIX)}
        kept = set[float]()
        for file in (self._lethe.model / "base").glob("*features.values-*"):
            kept |= {*np.frombuffer(file.read_bytes(), dtype=self._graph.features.dtype).tolist()}
        # What the last version added stays in its folder until the next.
        for file in self._lethe.model.glob("versions/*/edit.safetensors"):
            kept |= {*load_file(file).get("features.data", np.zeros(0)).tolist()}
        rows = (node.features for node in expected.nodes.values() if node.features is not None)
        assert kept - {0.0} == {value for row in rows for value in row[row != 0.0].tolist()}

    def _check_log_of_processes(self) -> None:
        """No process ended by an error of its own.

        A start during an outage ends with `MAY_PASS`, as does an unforeseen error; only the latter is logged as such.
        """
        patterns = rf" ended with status (?!{MAY_PASS}\b)[1-9]|The process fails"
        failed = [line for line in self._lethe.log().splitlines() if re.search(patterns, line)]
        assert not failed, failed

    def _counts(self, expected: Expected) -> Counter[str]:
        counts = Counter[str]()
        for client in self._clients:
            counts["accepted"] += len(client.sent)
            counts["repeated"] += client.repeated
            counts.update({f"refused as {slug}": times for slug, times in client.refused.items()})
            counts.update(f"{self._states[sent.id].status} {sent.asked.kind}" for sent in client.sent)
        counts["nodes"], counts["edges"] = len(expected.nodes), len(expected.edges)
        return counts


def stored(model: Path) -> dict[str, bytes]:
    """Return the files of a model, without tombstones and what is kept to start faster."""
    return {
        str(path.relative_to(model)): path.read_bytes()
        for path in model.rglob("*")
        if path.is_file() and "gram" not in path.name and not path.name.startswith("tombstones-")
    }


def _ids(content: bytes) -> Iterator[bytes]:
    pattern = PREFIX.encode()
    yield from re.findall(pattern + rb"[0-9a-f]{16}", content)
    wide = b"".join(bytes((letter, 0)) for letter in pattern)
    for found in re.findall(wide + rb"(?:[0-9a-f]\x00){16}", content):
        yield found[::2]


def _after_markers(content: bytes) -> Iterator[float]:
    """Yield the number after each marker, in float32 and float64."""
    for dtype in (np.float32, np.float64):
        marker = np.array(MARKER, dtype=dtype).tobytes()
        at = content.find(marker)
        while at >= 0:
            after = content[at + len(marker) : at + 2 * len(marker)]
            if len(after) == len(marker):
                yield float(np.frombuffer(after, dtype=dtype)[0])
            at = content.find(marker, at + 1)


def _is_of_a_row(number: float) -> bool:
    """Whether a drawn row may have this number; a marker's few bytes may also come about by chance."""
    return 1e-3 < abs(number) <= 1.0
