"""The visible effects of weights published with noise, and their required properties."""

import asyncio
import base64
import hashlib
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from model_store.store import Store
from model_store.versions import VersionState
from projector.forgetting.repair import RepairRun
from service.access.api_keys import ApiKeyRepository, new_api_key
from service.db.engine import create_engine
from service.db.transactions import transaction
from service.domain.figures import EXACT
from service.domain.scopes import Scope
from service.log.export_pages import export_lines
from service.log.signed_checkpoints import CheckpointRepository
from service.settings import Settings
from service.unlearner.committed import Committed
from tests.support.service.db_harness import until
from tests.support.service.repair_world import query
from tests.support.service.repairs import model_of
from tests.support.service.running import Lethe, running


class Kept:
    """A model's content on the disk."""

    def __init__(self, folder: Path) -> None:
        self.store = Store.open(folder)
        self.ref = self.store.current()
        self.version: VersionState = self.store.read_version(self.ref)

    @property
    def committed(self) -> Committed:
        return Committed.load(self.store.manifest, self.store.load_base(), self.version, self.ref.version, "cpu")

    @property
    def weights(self) -> bytes:
        return self.version.features.weights.tobytes() + self.version.labels.weights.tobytes()


async def predicted(lethe: Lethe, nodes: int = 160) -> np.ndarray:
    """Return the probabilities of nodes 0, 1, …, with a row of zeros for a deleted one."""
    rows = []
    for node in range(nodes):
        answer = await lethe.client.get(f"/predict/{node}")
        while answer.status_code == 503:
            # A delayed reader answers only after it has looked at the pointer again.
            await asyncio.sleep(0.01)
            answer = await lethe.client.get(f"/predict/{node}")
        assert answer.status_code in (200, 410), answer.text
        rows.append(list(answer.json()["probabilities"].values()) if answer.status_code == 200 else None)
    classes = next(len(row) for row in rows if row)
    return np.array([row or [0.0] * classes for row in rows])


async def assert_a_restart_draws_nothing_anew(settings: Settings) -> None:
    async with running(settings) as lethe:
        await until(lethe.is_ready)
        await lethe.completed(await lethe.delete("12"))
        before, model = await predicted(lethe, 40), await model_of(lethe)
    secret = Kept(settings.model_dir).version.publication
    # Another publication folder, written again from the stored draw.
    again = settings.model_copy(update={"share": settings.home / "other"})
    async with running(again) as lethe:
        await until(lethe.is_ready)
        assert np.array_equal(await predicted(lethe, 40), before)
        assert await model_of(lethe) == model
    assert Kept(settings.model_dir).version.publication == secret


async def assert_versions_have_draws_of_their_own_which_leave_with_them(lethe: Lethe) -> None:
    secrets = []
    for node in ("3", "4"):
        await lethe.completed(await lethe.delete(node))
        publication = Kept(lethe.settings.model_dir).version.publication
        assert publication is not None
        secrets.append(publication.secret)
        encoded = base64.b64encode(publication.secret)
        holding = [path for path in lethe.settings.home.rglob("*") if path.is_file() and encoded in path.read_bytes()]
        assert [path.name for path in holding] == ["state.safetensors"]
    assert secrets[0] != secrets[1]


#: Times and ids, whose digits can match a figure by chance.
_TIMES_AND_IDS = re.compile(r"\d{4}-\d\d-\d\d[T ][\d:.]+|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32,}")


def numbers_in(text: str) -> set[float]:
    text = _TIMES_AND_IDS.sub(" ", text)
    return {float(found) for found in re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", text)}


#: Every address with GET, and the paths to request for it.
WALKED = {
    "/model": ["/model"],
    "/v2": ["/v2"],
    "/v2/health/live": ["/v2/health/live"],
    "/v2/health/ready": ["/v2/health/ready"],
    "/v2/models/{model}": ["/v2/models/small"],
    "/v2/models/{model}/ready": [],
    "/predictions": [],
    "/deletions": ["/deletions", "/deletions?limit=200"],
    "/deletions/{request_id}": ["{self}"],
    "/additions/{request_id}": ["/additions/{id}"],
    "/corrections/{request_id}": ["/corrections/{id}"],
    "/deletions/{request_id}/receipt": ["{self}/receipt", "{self}/receipt?format=html"],
    "/drills": ["/drills"],
    "/events": ["/events"],
    "/webhooks/deliveries": ["/webhooks/deliveries"],
    "/log/checkpoint": ["/log/checkpoint"],
    "/log/consistency": ["/log/consistency?from=1"],
    "/log/proof/{index}": ["/log/proof/0"],
    "/audit/summary": ["/audit/summary"],
    "/audit/series": ["/audit/series"],
    "/audit/export": ["/audit/export", "/audit/export?format=csv"],
    "/healthz": ["/healthz"],
    "/readyz": ["/readyz"],
    "/readyz/predictions": ["/readyz/predictions"],
    "/metrics": [],
    "/predict/{node}": [],
}


async def everything(reader: Lethe, accepted: list[dict[str, Any]]) -> str:
    """Return everything that a key can read, except metrics, and predictions, which have their own test."""
    paths = [
        path.format(self=each["links"]["self"], id=each["id"])
        for asked in WALKED.values()
        for path in asked
        for each in (accepted if "{" in path else accepted[:1])
    ]
    answers = [await reader.client.get(path) for path in paths]
    answers += [
        await reader.client.post("/deletions/search", json=body) for body in ({"nodes": ["12"]}, {"limit": 200})
    ]
    return "\n".join(answer.text for answer in answers)


async def exact_values(lethe: Lethe) -> tuple[set[float], set[float], set[str]]:
    """Return figures, durations and digests of the exact weights, from the database and the disk."""
    figures, durations = set[float](), set[float]()
    for table in ("versions", "batches", "request_audits"):
        for row in await query(lethe.settings.database_url, f"SELECT to_jsonb(t) FROM {table} t"):
            record = row[0] if isinstance(row[0], dict) else json.loads(row[0])
            figures |= {record[name] for name in EXACT & record.keys() if isinstance(record[name], float)}
            # A short number, such as 12, may also be a count.
            durations |= {each for each in record.get("durations_ms", {}).values() if len(f"{each:g}".strip("0.")) >= 5}
    kept = Kept(lethe.settings.model_dir)
    salts = [row[0] for row in await query(lethe.settings.database_url, "SELECT commitment_salt FROM versions")]
    return (
        {each for each in figures if each},
        durations,
        {hashlib.sha256(kept.weights).hexdigest(), *filter(None, salts)},
    )


def shown_in(text: str, values: set[float], *, to: float = 5e-4) -> list[float]:
    """Return the values that a text contains, to three digits by default."""
    found = numbers_in(text)
    return [value for value in values if any(math.isclose(value, number, rel_tol=to) for number in found)]


async def assert_below_the_audit_nothing_is_computed_from_the_weights_as_they_are(lethe: Lethe) -> None:
    served = (await lethe.client.get("/openapi.json")).json()["paths"]
    assert {path for path, methods in served.items() if "get" in methods} == WALKED.keys()
    every = [scope for scope in Scope if scope is not Scope.AUDIT_READ]
    reader = await with_key(lethe, *every)
    accepted = [await reader.delete("12", "57"), await reader.delete("99")]
    new = {"id": "new", "features": {"0": 1.0}}
    for path, node in (("/additions", new), ("/corrections", new | {"id": "20"})):
        answer = await reader.client.post(path, json={"nodes": [node]})
        assert answer.status_code == 202, answer.text
        joining = answer.json()
        # Its receipt is where those of all requests are.
        accepted.append(joining | {"links": {"self": f"/deletions/{joining['id']}"}})
    for each in accepted:
        await lethe.completed(each)
        await lethe.receipt(each)
    answers, audited = await everything(reader, accepted), await everything(lethe, accepted)
    metrics = (await reader.client.get("/metrics")).text
    figures, durations, digests = await exact_values(lethe)
    assert len(figures) >= 8
    assert len(durations) >= 4
    assert shown_in(answers, figures) == []
    # Metrics print all digits, and many come from clocks: compare exactly.
    assert shown_in(metrics, figures, to=1e-9) == []
    assert shown_in(answers, durations, to=1e-9) == []
    assert "lethe_batch_step_seconds_count" not in metrics
    assert re.search(r"^lethe_repair_seconds_count\{.*\} 0\.0$", metrics, re.MULTILINE)
    assert not [digest for digest in digests if digest in answers + metrics]
    # The same walk finds them where they are reported.
    assert len(shown_in(audited, figures)) >= 8
    assert (await reader.client.get("/deletions?injected_norm_before_min=0")).json()["deletions"] == []
    # The deletions, and the correction, whose old features left.
    assert len((await lethe.client.get("/deletions?injected_norm_before_min=0")).json()["deletions"]) == 3


async def exported(lethe: Lethe) -> tuple[list[Any], list[Any]]:
    engine = lethe.services.engine
    async with transaction(engine) as connection:
        keys = list((await CheckpointRepository(connection).keys()).values())
    return [json.loads(json.dumps(line)) async for page in export_lines(engine) for line in page], keys


async def assert_weights_that_are_not_near_enough_stay_queued(
    lethe: Lethe, monkeypatch: pytest.MonkeyPatch, node: str = "12"
) -> None:
    before = await predicted(lethe, 5)
    with monkeypatch.context() as patch:
        repaired = RepairRun.repaired
        patch.setattr(RepairRun, "repaired", lambda run: _far(repaired(run)))
        accepted = await lethe.delete(node)

        async def is_named() -> bool:
            checks = (await lethe.client.get("/readyz")).json()["checks"]
            return any("did not bring the weights close enough" in check["detail"] for check in checks)

        await until(is_named)
        assert (await lethe.state(accepted))["status"] == "queued"
        assert np.array_equal(await predicted(lethe, 5), before)
    assert (await lethe.completed(accepted))["repair"] == "converged"
    await until(lethe.is_ready)


def _far(repaired: tuple[Any, Any]) -> tuple[Any, Any]:
    state, outcome = repaired
    return state, replace(outcome, after=replace(outcome.after, bound=1.0))


async def with_key(lethe: Lethe, *scopes: Scope) -> Lethe:
    """Return the same service, called with a new key of these scopes."""
    made = new_api_key()
    owner = create_engine(lethe.settings.servers[0], pool_size=1)
    async with transaction(owner) as connection:
        digest = lethe.services.keyring.api_key_hash(made.text)
        await ApiKeyRepository(connection).create(made.id, f"key {made.id}", scopes, digest)
    await owner.dispose()
    client = httpx2.AsyncClient(
        transport=httpx2.ASGITransport(lethe.client._transport.app),  # type: ignore[attr-defined]
        base_url="http://localhost",
        headers={"Authorization": f"Bearer {made.text}"},
    )
    return replace(lethe, client=client)
