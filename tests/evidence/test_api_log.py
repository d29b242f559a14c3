"""The log's routes and receipts, over a real database."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest
from prometheus_client import CollectorRegistry

from service.db.transactions import transaction
from service.domain.scopes import Scope
from service.log.canonical import canonical
from service.log.checkpoints import VerifierKey, verify
from service.log.commitments import commitment
from service.log.receipt import linked, verify_receipt
from service.log.signed_checkpoints import LogCheckRepository, LogSigner
from service.log.signing_keys import LogKeys
from service.observability.metrics import UnlearningMetrics
from service.predictions.version_rows import PointerRepository, VersionRepository
from service.requests.moves import RequestMoves
from service.unlearner.causes import ImportRepository
from tests.support.clients.signing_in import sign_in
from tests.support.evidence.rfc6962 import mth, path, subproof
from tests.support.service.api_harness import MODEL, Api
from tests.support.service.bodies import node_body, refused
from tests.support.service.db_harness import NORMS, Said, committed, made, outcome
from tests.support.service.db_harness import imported as record_import
from tests.support.service.imports import IMPORTED

OWNER = (Scope.DELETIONS_WRITE, Scope.DELETIONS_READ)


class Unlearner:
    """The unlearner's changes to the database, made manually."""

    def __init__(self, api: Api, home: Path) -> None:
        self._api = api
        self.keys = LogKeys.open(home / "keys")
        self._signer = LogSigner(api.engine, self.keys, UnlearningMetrics(CollectorRegistry()))
        self._version = 0

    @property
    def public(self) -> list[VerifierKey]:
        return [signer.public for signer in self.keys.signers().values()]

    async def apply(self, *requests: UUID) -> None:
        self._version += 1
        record = made(self._version, requests=len(requests))
        async with transaction(self._api.engine) as connection:
            await committed(connection, record, dict.fromkeys(requests, NORMS))
            outcomes = [outcome(request) for request in requests]
            await RequestMoves(connection).mark_applied(record.id, outcomes)
            await VersionRepository(connection).finish(record.id, span_residual=3e-15, durations_ms={})

    async def complete(self, *requests: UUID) -> None:
        async with transaction(self._api.engine) as connection:
            figures = Said(span_residual=3e-15, rank_after=9, injected_norm_before=0.25)
            await RequestMoves(connection).mark_completed(dict.fromkeys(requests, figures))

    async def sign(self) -> int:
        return await self._signer.sign_pending()


@pytest.fixture
def unlearner(api: Api, tmp_path: Path) -> Unlearner:
    return Unlearner(api, tmp_path)


async def accepted(client: httpx2.AsyncClient, *nodes: str) -> dict[str, Any]:
    response = await client.post("/deletions", json=node_body(*nodes, reference="DSR-17"))
    assert response.status_code == 202
    answer: dict[str, Any] = response.json()
    return answer


async def texts(api: Api) -> list[bytes]:
    async with transaction(api.engine) as connection:
        rows = await connection.exec_driver_sql("SELECT data FROM leaves ORDER BY index")
        return [data.encode() for (data,) in rows]


async def test_a_receipt_proves_what_was_done_to_whoever_has_the_public_key(api: Api, unlearner: Unlearner) -> None:
    client = await api.client(*OWNER)
    await unlearner.apply(UUID((await accepted(client, "1"))["id"]))
    answer = await accepted(client, "12", "user/38")
    request_id = UUID(answer["id"])
    await unlearner.apply(request_id)
    await unlearner.complete(request_id)
    await unlearner.sign()

    response = await client.get(f"/deletions/{request_id}/receipt")
    assert response.status_code == 200
    receipt = response.json()
    report = verify_receipt(receipt, unlearner.public)
    assert report.is_good, report.findings
    assert (report.leaves, report.signed) == (2, 1)
    assert [entry["leaf"]["type"] for entry in receipt["entries"]] == ["applied", "completed"]
    summary = receipt["summary"]
    assert (summary["status"], summary["count"], summary["guarantee"]) == ("completed", 2, "span")
    assert "not those of a model retrained" in summary["guarantee_in_words"]
    assert summary["figures"]["span_residual"] == 3e-15
    assert receipt["public_keys"] == [str(key) for key in unlearner.public]

    # By the RFC's own definitions.
    leaves = await texts(api)
    checkpoint = verify(receipt["checkpoint"], unlearner.public)
    assert checkpoint.root == mth(leaves)
    for entry in receipt["entries"]:
        index = entry["leaf"]["index"]
        assert canonical(entry["leaf"]) == leaves[index]
        assert [bytes.fromhex(step) for step in entry["inclusion_proof"]] == path(index, leaves)

    # The person appears nowhere in it; with the stored salts one can show that it is about them.
    assert "user/38" not in response.text
    assert "DSR-17" not in response.text
    assert not any(salt in response.text for salt in answer["salts"]["nodes"].values())
    assert linked(receipt, answer["salts"], "DSR-17") == ({"12": True, "user/38": True}, True)
    others = {"nodes": {"13": answer["salts"]["nodes"]["12"]}, "reference": answer["salts"]["reference"]}
    assert linked(receipt, others, "DSR-18") == ({"13": False}, False)
    assert commitment(answer["salts"]["nodes"]["12"], "12").hex() in receipt["entries"][0]["leaf"]["subjects"]


async def test_there_is_no_receipt_before_a_request_is_applied_and_signed(api: Api, unlearner: Unlearner) -> None:
    client = await api.client(*OWNER)
    request_id = UUID((await accepted(client, "12"))["id"])
    receipt = f"/deletions/{request_id}/receipt"
    assert "once it is applied" in refused(await client.get(receipt), 409, "conflict")["remedy"]
    await unlearner.apply(request_id)
    assert (await client.get(receipt)).headers["retry-after"] == "1"
    refused(await client.get(receipt), 503, "unavailable")
    await unlearner.sign()
    assert (await client.get(receipt)).status_code == 200
    await unlearner.complete(request_id)
    refused(await client.get(receipt), 503, "unavailable")

    cancelled = (await accepted(client, "13"))["id"]
    await client.delete(f"/deletions/{cancelled}")
    assert "cancelled" in refused(await client.get(f"/deletions/{cancelled}/receipt"), 409, "conflict")["detail"]


async def test_a_request_that_failed_has_a_receipt_that_says_why(api: Api, unlearner: Unlearner) -> None:
    client = await api.client(*OWNER)
    request_id = UUID((await accepted(client, "12"))["id"])
    async with transaction(api.engine) as connection:
        await RequestMoves(connection).mark_failed(request_id, "Its features could not be read.")
    await unlearner.sign()
    receipt = (await client.get(f"/deletions/{request_id}/receipt")).json()
    assert verify_receipt(receipt, unlearner.public).is_good
    summary = receipt["summary"]
    assert (summary["status"], summary["failure"]) == ("failed", "Its features could not be read.")
    page = (await client.get(f"/deletions/{request_id}/receipt", params={"format": "html"})).text
    assert "nothing was deleted for this request" in " ".join(page.split())
    assert "The reason: Its features could not be read." in page
    # The requester sees the reference that they gave.
    assert "DSR-17" in page
    # A retried request is in progress, and has none until it has ended.
    operator = await api.client(Scope.DELETIONS_WRITE, Scope.AUDIT_READ)
    assert (await operator.post(f"/deletions/{request_id}/retry")).is_success
    refused(await client.get(f"/deletions/{request_id}/receipt"), 409, "conflict")


async def test_it_is_kept_who_has_checked_the_log_and_how_far(api: Api, unlearner: Unlearner) -> None:
    client = await api.client(*OWNER)
    for node in ("12", "13", "14"):
        await unlearner.apply(UUID((await accepted(client, node))["id"]))
    leaves = await texts(api)
    first, second, third = ({"size": size, "root": mth(leaves[:size]).hex()} for size in (1, 2, 3))
    assert len(leaves) == 3
    check = {**second, "against": first}
    assert (await client.post("/log/checks", json=check)).status_code == 204
    other = await api.client(Scope.PREDICTIONS_READ)
    refused(await other.post("/log/checks", json=check), 403, "missing-scope")
    auditor = await api.client(Scope.AUDIT_READ)
    assert (await auditor.post("/log/checks", json={**third, "against": first})).status_code == 204
    wrong = ({**second, "root": first["root"]}, {**third, "size": 4})
    for body in (*({**one, "against": first} for one in wrong), {**third, "against": wrong[0]}):
        refused(await client.post("/log/checks", json=body), 409, "conflict")
    async with transaction(api.engine) as connection:
        newest = await LogCheckRepository(connection).newest()
        rows = (await connection.exec_driver_sql("SELECT size FROM log_checks ORDER BY size")).scalars().all()
    assert newest is not None
    assert (newest.size, rows) == (3, [2, 3])


async def test_a_log_that_is_compared_with_itself_or_with_an_empty_one_is_not_checked(
    api: Api, unlearner: Unlearner
) -> None:
    client = await api.client(*OWNER)
    for node in ("12", "13"):
        await unlearner.apply(UUID((await accepted(client, node))["id"]))
    leaves = await texts(api)
    empty, first, second = ({"size": size, "root": mth(leaves[:size]).hex()} for size in (0, 1, 2))
    for body in (second, {**second, "against": second}, {**first, "against": second}, {**second, "against": empty}):
        refused(await client.post("/log/checks", json=body), 422, "invalid-request")
    async with transaction(api.engine) as connection:
        assert await LogCheckRepository(connection).newest() is None


async def test_a_receipt_is_for_whoever_asked_and_for_auditors(api: Api, unlearner: Unlearner) -> None:
    owner = await api.client(*OWNER)
    request_id = UUID((await accepted(owner, "12"))["id"])
    await unlearner.apply(request_id)
    await unlearner.sign()
    receipt = f"/deletions/{request_id}/receipt"
    refused(await (await api.client(*OWNER)).get(receipt), 404, "not-found")
    refused(await (await api.client(Scope.PREDICTIONS_READ)).get(receipt), 403, "missing-scope")
    refused(await (await api.client_with(None)).get(receipt), 401, "unauthenticated")
    auditor = await api.client(Scope.DELETIONS_READ, Scope.AUDIT_READ)
    assert (await auditor.get(receipt)).status_code == 200


async def test_a_request_with_nothing_left_to_do_has_a_receipt_that_names_the_earlier(
    api: Api, unlearner: Unlearner
) -> None:
    client = await api.client(*OWNER)
    earlier = UUID((await accepted(client, "12"))["id"])
    await unlearner.apply(earlier)
    await api.forget(["12"], earlier)
    await unlearner.complete(earlier)
    later = (await client.post("/deletions", json=node_body("12"))).json()
    await api.complete_without_work(later, earlier)
    await unlearner.sign()
    response = await client.get(f"/deletions/{later['id']}/receipt")
    receipt = response.json()
    assert verify_receipt(receipt, unlearner.public).is_good
    assert receipt["summary"]["already_deleted_by"] == str(earlier)
    assert receipt["summary"]["guarantee_in_words"].startswith("Another request")
    page = (await client.get(f"/deletions/{later['id']}/receipt", params={"format": "html"})).text
    assert str(earlier) in page


async def test_later_imports_of_the_model_are_shown_with_their_proof(api: Api, unlearner: Unlearner) -> None:
    client = await api.client(*OWNER)
    for model in (MODEL, "another"):
        await imported(api, model)
    request_id = UUID((await accepted(client, "12"))["id"])
    await unlearner.apply(request_id)
    await unlearner.complete(request_id)
    await unlearner.sign()
    receipt = f"/deletions/{request_id}/receipt"
    assert (await client.get(receipt)).json()["since"] == []
    for model in (MODEL, "another"):
        await imported(api, model)
    await unlearner.sign()
    found = (await client.get(receipt)).json()
    report = verify_receipt(found, unlearner.public)
    assert report.is_good, report.findings
    [(index, what)] = report.unrequested
    assert (index, found["since"][0]["leaf"]["type"]) == (4, "imported")
    assert what.startswith(f"a newly trained model replaced {MODEL}: version ")
    page = (await client.get(receipt, params={"format": "html"})).text
    assert "What happened to the model since" in page
    assert what in page
    # The dashboard shows everything.
    auditor = await api.client_with(None)
    await sign_in(auditor, (await api.key(Scope.AUDIT_READ))[1])
    assert (await auditor.get("/dashboard/log")).text.count("a newly trained model replaced") == 4


async def imported(api: Api, model: str) -> None:
    async with transaction(api.engine) as connection:
        version = replace(IMPORTED, id=uuid4(), model=model)
        number = 5 + 2 * await api.count("imports")
        version = replace(version, number=number, folder=f"{number}-1", number_before=number - 1, repair_version=number)
        if await PointerRepository(connection).read(model) is None:
            await PointerRepository(connection).create(version.pointer)
        await record_import(connection, version)
        await VersionRepository(connection).finish(version.id, span_residual=1e-14, durations_ms={})
        await ImportRepository(connection).complete(version.id)


async def test_the_page_says_the_same_and_loads_nothing(api: Api, unlearner: Unlearner) -> None:
    client = await api.client(*OWNER)
    request_id = UUID((await accepted(client, "12"))["id"])
    await unlearner.apply(request_id)
    await unlearner.complete(request_id)
    await unlearner.sign()
    response = await client.get(f"/deletions/{request_id}/receipt", params={"format": "html"})
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    page = response.text
    receipt = (await client.get(f"/deletions/{request_id}/receipt")).json()
    for said in (str(request_id), receipt["summary"]["guarantee_in_words"].split("'")[0], "3.00 × 10⁻¹⁵", "one record"):
        assert said in page
    for line in receipt["checkpoint"].split("\n"):
        assert line.replace("+", "&#43;") in page or line in page
    assert "<script" not in page
    assert "http://" not in page
    assert "https://" not in page


async def test_what_is_written_into_a_page_is_text_and_not_markup(api: Api, unlearner: Unlearner) -> None:
    client = await api.client(*OWNER)
    request_id = UUID((await accepted(client, "12"))["id"])
    await unlearner.apply(request_id)
    async with transaction(api.engine) as connection:
        statement = "UPDATE requests SET explanation = '<script>alert(1)</script>'"
        await connection.exec_driver_sql(statement)
    await unlearner.complete(request_id)
    await unlearner.sign()
    page = (await client.get(f"/deletions/{request_id}/receipt", params={"format": "html"})).text
    assert "&lt;script&gt;alert(1)" in page
    assert "<script" not in page


async def test_checkpoints_and_proofs_are_for_whoever_may_know_of_deletions(api: Api, unlearner: Unlearner) -> None:
    owner, reader = await api.client(*OWNER), await api.client(Scope.AUDIT_READ)
    refused(await (await api.client_with(None)).get("/log/checkpoint"), 401, "unauthenticated")
    for scope in (Scope.DELETIONS_WRITE, Scope.PREDICTIONS_READ):
        for place in ("/log/checkpoint", "/log/consistency?from=1", "/log/proof/0"):
            refused(await (await api.client(scope)).get(place), 403, "missing-scope")
    refused(await reader.get("/log/checkpoint"), 503, "unavailable")
    assert await unlearner.sign() == 0
    sizes = {}
    for node in range(7):
        await unlearner.apply(UUID((await accepted(owner, str(node)))["id"]))
        size = await unlearner.sign()
        response = await reader.get("/log/checkpoint")
        assert response.headers["content-type"] == "text/plain; charset=utf-8"
        sizes[size] = verify(response.text, unlearner.public)
    leaves = await texts(api)
    assert sizes[7].root == mth(leaves)

    for old in range(1, 8):
        answer = (await reader.get("/log/consistency", params={"from": old, "to": 7})).json()
        assert [bytes.fromhex(step) for step in answer["proof"]] == subproof(old, leaves, True)
        assert answer == (await reader.get("/log/consistency", params={"from": old})).json()
    for index in range(5):
        answer = (await reader.get(f"/log/proof/{index}", params={"size": 5})).json()
        assert [bytes.fromhex(step) for step in answer["proof"]] == path(index, leaves[:5])
        assert answer["leaf_hash"] == mth([leaves[index]]).hex()
        assert json.loads(leaves[index])["index"] == index
    assert (await reader.get("/log/proof/6")).json()["size"] == 7

    for place in ("/log/proof/7", "/log/proof/5?size=5"):
        refused(await reader.get(place), 404, "not-found")
    for place in (
        "/log/proof/x",
        "/log/proof/-1",
        "/log/proof/0?size=8",
        "/log/proof/0?size=0",
        "/log/consistency",
        "/log/consistency?from=0",
        "/log/consistency?from=8",
        "/log/consistency?from=3&to=2",
        "/log/consistency?from=3&to=9999999999999999999999",
    ):
        refused(await reader.get(place), 422, "invalid-request")
