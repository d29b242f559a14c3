"""The transparency log: its newest checkpoint, and proofs against it.

The log names nobody. But it grows more for a node that existed than for one already deleted, so keys that may only
request deletions cannot see it.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from service.db.transactions import transaction
from service.domain.fields import Known
from service.domain.records import ApiKey
from service.domain.scopes import Scope
from service.errors import InvalidRequest, NotFound
from service.log.checkpoints import read
from service.log.events import LogRepository
from service.log.signed_checkpoints import CheckpointRepository, Extent, LogCheckRepository
from service.web.api.auth import KeyedRoute, requires_any
from service.web.routes import problems, reply
from service.web.services import services_of

router = APIRouter(prefix="/log", tags=["log"], route_class=KeyedRoute)

Caller = Annotated[ApiKey, requires_any(Scope.DELETIONS_READ, Scope.AUDIT_READ)]

#: Upper limit on leaves: larger JSON numbers are not exact.
_LARGEST = 2**53 - 1
_HASH = "a" * 64
_CHECKPOINT = (
    "lethe/2c26b46b68ffc68f\n12\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\n"
    "— lethe/2c26b46b68ffc68f "
    "Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=\n"
)


class ConsistencyAnswer(BaseModel):
    """Proof that the log only grew (RFC 6962, 2.1.2)."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"from": 3, "to": 12, "proof": [_HASH]}]})

    from_: int = Field(alias="from")
    to: int
    proof: list[str] = Field(description="Hashes in hex, lowest first; empty if both sizes are equal.")


class InclusionAnswer(BaseModel):
    """Proof that the log contains a leaf (RFC 6962, 2.1.1)."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"index": 3, "size": 12, "leaf_hash": _HASH, "proof": [_HASH]}]}
    )

    index: int
    size: int
    leaf_hash: str = Field(description="SHA-256(0x00 || leaf), hex; the leaf itself is in the receipt of its request.")
    proof: list[str] = Field(description="Hashes in hex, lowest first.")


class ExtentBody(Known):
    """Size and root of a checkpoint."""

    model_config = ConfigDict(strict=True)

    size: int = Field(ge=1, le=_LARGEST, description="Number of leaves.")
    root: str = Field(pattern="^[0-9a-f]{64}$", description="Root hash, in hex.")

    @property
    def extent(self) -> Extent:
        """The body as an Extent."""
        return Extent(self.size, bytes.fromhex(self.root))


class LogCheckBody(ExtentBody):
    """A checkpoint found consistent with an earlier one."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={"examples": [{"size": 12, "root": _HASH, "against": {"size": 3, "root": _HASH}}]},
    )

    against: ExtentBody = Field(description="The earlier, smaller checkpoint that it was compared with.")


#: Description in /docs of a response that is not JSON.
_NOTE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"example": _CHECKPOINT}}, "description": "A checkpoint as a C2SP signed note"}
}


@router.get(
    "/checkpoint",
    response_class=Response,
    responses={**_NOTE, **problems(401, 403, 503)},
    summary="The log's newest signed checkpoint",
)
async def checkpoint(request: Request, caller: Caller) -> Response:
    """Size and root of the log, signed. Keep it: it exposes a log that is changed later."""
    async with transaction(services_of(request).engine) as connection:
        note = await CheckpointRepository(connection).require()
    return Response(note, media_type="text/plain")


@router.get(
    "/consistency",
    response_model=ConsistencyAnswer,
    responses=problems(401, 403, 503),
    summary="Prove that the log only grew",
)
async def consistency(
    request: Request,
    caller: Caller,
    old: Annotated[int, Query(alias="from", ge=1, le=_LARGEST, description="Size of the earlier checkpoint.")],
    new: Annotated[
        int | None,
        Query(alias="to", ge=1, le=_LARGEST, description="Size of the later checkpoint; default: the newest."),
    ] = None,
) -> Response:
    """The hashes that connect the root of the first `from` leaves to the root of the first `to`."""
    async with transaction(services_of(request).engine) as connection:
        size = new or read(await CheckpointRepository(connection).require()).size
        log = LogRepository(connection)
        await _require_size(log, size)
        if old > size:
            raise InvalidRequest(
                f"The log cannot have grown from {old} leaves to {size}.",
                "Give the size of the earlier checkpoint first.",
            )
        proof = await log.consistency(old, size)
    return reply(ConsistencyAnswer(**{"from": old}, to=size, proof=[digest.hex() for digest in proof]))


@router.get(
    "/proof/{index}",
    response_model=InclusionAnswer,
    responses=problems(401, 403, 404, 503),
    summary="Prove that a leaf is in the log",
)
async def inclusion(
    request: Request,
    caller: Caller,
    index: Annotated[int, Path(ge=0, le=_LARGEST, description="Index of the leaf, counted from 0.")],
    size: Annotated[
        int | None, Query(ge=1, le=_LARGEST, description="Size of the checkpoint; default: the newest.")
    ] = None,
) -> Response:
    """The hash of a leaf, and the hashes that connect it to the root of the first `size` leaves."""
    async with transaction(services_of(request).engine) as connection:
        size = size or read(await CheckpointRepository(connection).require()).size
        log = LogRepository(connection)
        await _require_size(log, size)
        hashed = await log.leaf_hash(index) if index < size else None
        if hashed is None:
            raise NotFound(f"A log of {size} leaves has no leaf {index}.", f"Leaves are numbered from 0 to {size - 1}.")
        proof = await log.inclusion(index, size)
    return reply(
        InclusionAnswer(index=index, size=size, leaf_hash=hashed.hex(), proof=[digest.hex() for digest in proof])
    )


@router.post("/checks", status_code=204, responses=problems(401, 403, 409, 503), summary="Report a check of the log")
async def checked(request: Request, caller: Caller, body: LogCheckBody) -> None:
    """Report that the log only grew from an earlier checkpoint to a later one. The dashboard shows time and key.

    409 if this log has other roots at these sizes: keep the checkpoints, they are evidence.
    """
    async with transaction(services_of(request).engine) as connection:
        await LogCheckRepository(connection).record(caller.id, body.extent, body.against.extent)


async def _require_size(log: LogRepository, size: int) -> None:
    leaves = await log.size()
    if size > leaves:
        raise InvalidRequest(f"The log has {leaves} leaves, not {size}.", "Give the size of one of its checkpoints.")
