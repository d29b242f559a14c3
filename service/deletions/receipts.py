"""The receipt of a deletion: evidence that can be checked without trusting Lethe, as JSON or as a page to print."""

import asyncio
import base64
import functools
import hashlib
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import jinja2
import orjson
from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from service.api.auth import requires
from service.api.deletions import RequestId
from service.api.log import newest_checkpoint
from service.audit.canonical import Document, parse_canonical
from service.audit.checkpoint import read, signers_of
from service.audit.model_events import OF_THE_MODEL
from service.audit.receipt import Entry, receipt
from service.db.engine import Connection
from service.db.transactions import transaction
from service.deletions.lookup import visible_to
from service.deletions.receipt_example import RECEIPT
from service.deletions.requests import RequestRepository
from service.domain.guarantees import FIGURES
from service.domain.records import ApiKey
from service.domain.states import RequestStatus, Scope
from service.errors import Conflict, NotFound, Unavailable
from service.evidence.checkpoints import CheckpointRepository
from service.evidence.log import LogRepository, StoredLeaf
from service.http.problem_responses import problems
from service.services import services_of

router = APIRouter(prefix="/deletions", tags=["deletions"])

Follower = Annotated[ApiKey, requires(Scope.DELETIONS_READ)]

_TEMPLATES = Path(__file__).parent / "templates"
#: Seconds between looks for the signature of a new event, which is made at once.
_WAITS_S = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 0.0)
_READY = (RequestStatus.APPLIED, RequestStatus.COMPLETED)


class ReceiptEntry(BaseModel):
    """One event of the request, as the log has it."""

    leaf: dict[str, Any] = Field(description="What was hashed, in canonical JSON (RFC 8785).")
    inclusion_proof: list[str] = Field(description="Hashes in hex by which the leaf leads to the checkpoint's root.")


class ReceiptAnswer(BaseModel):
    """The evidence of one deletion; `lethe audit verify` checks it offline."""

    model_config = ConfigDict(json_schema_extra={"examples": [RECEIPT]})

    format: str
    request_id: UUID
    summary: dict[str, Any] = Field(description="What the leaves say together, for people; derived from them alone.")
    entries: list[ReceiptEntry]
    since: list[ReceiptEntry] = Field(
        description="What befell the model after the first of these and no request asked for: imports, recoveries."
    )
    checkpoint: str = Field(description="The signed note that the proofs lead to.")
    public_keys: list[str] = Field(
        description="Keys that signed the checkpoint, as the server says: trust those you have from elsewhere."
    )


@router.get(
    "/{request_id}/receipt",
    response_model=ReceiptAnswer,
    responses={
        200: {"content": {"text/html": {"schema": {"type": "string"}}}},
        **problems(401, 403, 404, 409, 422, 503),
    },
    summary="The receipt of a deletion",
)
async def get_receipt(
    request: Request,
    request_id: RequestId,
    caller: Follower,
    form: Annotated[
        Literal["json", "html"], Query(alias="format", description="`html` is a page to read and to print.")
    ] = "json",
) -> Response:
    """What was asked, what was done and what is guaranteed, with proofs that the signed log says so.

    From `applied` on; before that, and for a request that failed or was cancelled, it is 409.
    """
    for wait_s in _WAITS_S:
        async with transaction(services_of(request).engine) as connection:
            await _require_ready(connection, request_id, caller)
            document = await _receipt(connection, request_id)
        if document is not None:
            break
        await asyncio.sleep(wait_s)
    else:
        raise Unavailable("The newest event of this request is not signed yet.", "Try again in a moment.")
    if form == "json":
        return Response(orjson.dumps(document), media_type="application/json")
    style = _style()
    page = _template().render(receipt=document, style=style, meanings=FIGURES, tree=read(document["checkpoint"]))
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return HTMLResponse(page, headers={"Content-Security-Policy": policy})


async def _require_ready(connection: Connection, request_id: UUID, caller: ApiKey) -> None:
    found = await RequestRepository(connection).get(request_id, visible_to(caller))
    if found is None:
        raise NotFound(
            "There is no such deletion request, as far as this key may know.",
            "Check the id; a key without audit:read sees only what it asked for itself.",
        )
    status = found[0].status
    if status not in _READY:
        waiting = status is RequestStatus.QUEUED
        raise Conflict(
            f"The request is {status}: there is no receipt of it.",
            "Ask again once it is applied." if waiting else "Nothing was deleted for it.",
        )


async def _receipt(connection: Connection, request_id: UUID) -> Document | None:
    """The receipt; None while the newest event of the request is not signed yet."""
    log, checkpoints = LogRepository(connection), CheckpointRepository(connection)
    note = await newest_checkpoint(connection)
    size = read(note).size
    leaves = await log.of_request(request_id)
    if not leaves or leaves[-1].index >= size:
        return None

    async def proven(leaf: StoredLeaf) -> Entry:
        return Entry(parse_canonical(leaf.data), await log.inclusion(leaf.index, size))

    entries = [await proven(leaf) for leaf in leaves]
    model = entries[-1].leaf["request"]["model"]
    since = [await proven(leaf) for leaf in await befallen(log, model, leaves[0].index) if leaf.index < size]
    signers = signers_of(note)
    return receipt(entries, note, [key for key in (await checkpoints.keys()).values() if key.id in signers], since)


async def befallen(log: LogRepository, model: str, after: int) -> list[StoredLeaf]:
    """The leaves, in order, of what befell a model after the leaf `after` and no request asked for."""
    return [leaf for leaf in reversed(await log.of_no_request(after=after)) if _is_of(model, leaf)]


def _is_of(model: str, leaf: StoredLeaf) -> bool:
    told = parse_canonical(leaf.data)
    return told["type"] in OF_THE_MODEL and told["details"]["model"] == model


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    return environment.get_template("receipt.html")


@functools.cache
def _style() -> str:
    return (_TEMPLATES / "receipt.css").read_text()
