"""The receipt of a deletion: evidence that can be checked without trusting Lethe, as JSON or as a page to print."""

from typing import Annotated, Any, Literal
from uuid import UUID

import orjson
from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from service.api.auth import KeyedRoute, requires
from service.api.deletions import RequestId
from service.deletions.examples import RECEIPT
from service.deletions.receipts import receipt_of
from service.domain.records import ApiKey
from service.domain.scopes import Scope
from service.http.problem_responses import problems
from service.http.replies import page_reply
from service.papers.receipt import receipt_paper
from service.services import services_of

router = APIRouter(prefix="/deletions", tags=["deletions"], route_class=KeyedRoute)

Follower = Annotated[ApiKey, requires(Scope.DELETIONS_READ)]


class ReceiptEntry(BaseModel):
    """One event of the request, as the log has it."""

    leaf: dict[str, Any] = Field(description="The hashed text, in canonical JSON (RFC 8785).")
    inclusion_proof: list[str] = Field(
        description="Inclusion proof from the leaf to the root of the checkpoint: hashes in hex."
    )


class ReceiptAnswer(BaseModel):
    """The evidence of one deletion; `lethe audit verify` checks it offline."""

    model_config = ConfigDict(json_schema_extra={"examples": [RECEIPT]})

    format: str
    request_id: UUID
    summary: dict[str, Any] = Field(description="Summary of the leaves, for people; derived only from them.")
    entries: list[ReceiptEntry]
    since: list[ReceiptEntry] = Field(description="Imports and recoveries of the model since the first leaf.")
    checkpoint: str = Field(description="The signed note that the proofs end in.")
    public_keys: list[str] = Field(
        description="Keys that signed the checkpoint, according to the server. Trust only keys that you have "
        "from elsewhere."
    )


@router.get(
    "/{request_id}/receipt",
    response_model=ReceiptAnswer,
    responses={
        200: {"content": {"text/html": {"schema": {"type": "string"}}}},
        **problems(401, 403, 404, 409, 503),
    },
    summary="The receipt of a deletion",
)
async def get_receipt(
    request: Request,
    request_id: RequestId,
    caller: Follower,
    form: Annotated[Literal["json", "html"], Query(alias="format", description="`html`: a printable page.")] = "json",
) -> Response:
    """What was asked, what was done and what is guaranteed, with proofs that the signed log says so.

    From `applied` on, and of a request that failed; before that, and for one that was cancelled, it is 409.
    """
    services = services_of(request)
    receipt = await receipt_of(services.engine, request_id, caller)
    if form == "json":
        return Response(orjson.dumps(receipt.document), media_type="application/json")
    paper = receipt_paper(receipt, services.settings)
    return page_reply(paper.html, paper.policy)
