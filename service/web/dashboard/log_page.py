"""The page of the transparency log: its newest checkpoint, and a comparison with an earlier one."""

from typing import Annotated

import orjson
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from service.db.transactions import transaction
from service.errors import InvalidRequest, NotFound
from service.log.canonical import parse_canonical
from service.log.checkpoints import read
from service.log.events import LogRepository
from service.log.signed_checkpoints import CheckpointRepository, Extent, LogCheckRepository
from service.log.verification import UnrequestedEvent
from service.web.dashboard.pages import Page, page
from service.web.dashboard.signing_in import PATH, SignedIn, form_of
from service.web.services import services_of

router = APIRouter(prefix=f"{PATH}/log", route_class=Page, include_in_schema=False)

#: Most events without a request shown; there are few.
_SHOWN = 20

_Size = Annotated[int, Query(ge=1, le=2**53 - 1)]


@router.get("")
async def log_page(
    request: Request, visitor: SignedIn, size: _Size | None = None, root: Annotated[str | None, Query()] = None
) -> Response:
    """The newest checkpoint with its keys, and checks for the browser to run.

    The code on a printed report leads here with the `size` and `root` of its checkpoint, which the browser reads.
    """
    async with transaction(services_of(request).engine) as connection:
        checkpoints = CheckpointRepository(connection)
        note = await checkpoints.latest()
        keys = [str(key) for key in (await checkpoints.keys()).values()]
        log = LogRepository(connection)
        leaves = await log.size()
        model_events = [UnrequestedEvent.of(parse_canonical(leaf.data)) for leaf in await log.unrequested(limit=_SHOWN)]
    checkpoint = None if note is None else read(note)
    return page(
        request,
        "log.html",
        visitor,
        note=note,
        checkpoint=checkpoint,
        keys=keys,
        size=leaves,
        model_events=model_events,
    )


@router.get("/checkpoint")
async def checkpoint(request: Request, visitor: SignedIn) -> Response:
    """The newest signed checkpoint, to be saved."""
    async with transaction(services_of(request).engine) as connection:
        note = await CheckpointRepository(connection).latest()
    if note is None:
        raise NotFound("The log is not signed yet.", "Try again in a moment.")
    return Response(note, media_type="text/plain; charset=utf-8")


@router.get("/consistency")
async def consistency(
    request: Request,
    visitor: SignedIn,
    old: Annotated[_Size, Query(alias="from")],
    new: Annotated[_Size, Query(alias="to")],
) -> Response:
    """The proof that the first `from` leaves are unchanged among the first `to`: JSON, hashes in hex."""
    async with transaction(services_of(request).engine) as connection:
        log = LogRepository(connection)
        if not old <= new <= await log.size():
            raise NotFound(f"There is no proof from {old} leaves to {new}.", "Give two sizes, the earlier first.")
        proof = await log.consistency(old, new)
    return Response(orjson.dumps({"proof": [digest.hex() for digest in proof]}), media_type="application/json")


@router.post("/checks")
async def checked(request: Request, visitor: SignedIn) -> Response:
    """Record that the user's browser found that the log only grew from one checkpoint to a later one."""
    fields = await form_of(request, visitor.form_token, "size", "root", "against_size", "against_root")
    try:
        checked, against = (
            Extent(int(fields.get(f"{which}size", "")), bytes.fromhex(fields.get(f"{which}root", "")))
            for which in ("", "against_")
        )
    except ValueError:
        raise InvalidRequest("This is not a checkpoint.", "Load the page of the log again.") from None
    async with transaction(services_of(request).engine) as connection:
        await LogCheckRepository(connection).record(visitor.key.id, checked, against)
    return Response(status_code=204)
