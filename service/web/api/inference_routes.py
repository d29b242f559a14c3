"""The Open Inference Protocol (V2) over HTTP, beside `/predict`, with the same keys, rounding and limits."""

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from service.domain.records import ApiKey
from service.domain.scopes import Scope
from service.errors import BodyTooLarge, NodeDeleted, NotFound, UnknownNodes
from service.predictions.facts import Facts
from service.predictions.reader import offload
from service.version import VERSION
from service.web.api.auth import KeyedRoute
from service.web.api.predicting import Caller, predictions_for
from service.web.api.tensors import EXTENSIONS, INPUT, JSON_SIZE, answered, outputs_of, parsed, require_tensors
from service.web.routes import StrictRoute, problems, reply, reply_record
from service.web.services import Services, services_of

#: Most ids that an error names.
_NAMED = 5


class InferRoute(KeyedRoute):
    """Reads its body itself, since tensors may follow the JSON."""

    refuses_bodies = False


open_router = APIRouter(prefix="/v2", tags=["inference"], route_class=StrictRoute)
router = APIRouter(prefix="/v2", tags=["inference"], route_class=KeyedRoute)
infer_router = APIRouter(prefix="/v2", tags=["inference"], route_class=InferRoute)

Name = Annotated[str, Path(description="Name of the model, as in `GET /model`.", examples=["cora"])]
Version = Annotated[str, Path(description="The version that is served now; others are 404.", examples=["7"])]


def _example(**example: Any) -> ConfigDict:
    return ConfigDict(protected_namespaces=(), json_schema_extra={"examples": [example]})


class Tensor(BaseModel):
    """Name, datatype and shape of a tensor; -1 is any number of nodes."""

    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, Any] | None = Field(None, description="`labels` names the columns.")


class ServerMetadata(BaseModel):
    """The server."""

    model_config = _example(name="lethe", version=VERSION, extensions=list(EXTENSIONS))

    name: str
    version: str
    extensions: list[str]


_NODES: dict[str, Any] = {"name": INPUT, "datatype": "BYTES", "shape": [-1]}
_LABEL: dict[str, Any] = {"name": "label", "datatype": "BYTES", "shape": [-1]}
_PLATFORM = "lethe_linear_gnn"


class ModelMetadata(BaseModel):
    """The served model."""

    model_config = _example(name="cora", versions=["7"], platform=_PLATFORM, inputs=[_NODES], outputs=[_LABEL])

    name: str
    versions: list[str] = Field(description="The version that is served now.")
    platform: str
    inputs: list[Tensor]
    outputs: list[Tensor]


class ServerState(BaseModel):
    """Whether the server is live."""

    model_config = _example(live=True)

    live: bool = True


class ServerReady(ServerState):
    """Whether the server can predict."""

    model_config = _example(live=True, ready=True)

    ready: bool = True


class ModelReady(BaseModel):
    """Whether the model can predict."""

    model_config = _example(name="cora", ready=True)

    name: str
    ready: bool = True


class OutputTensor(BaseModel):
    """Predictions of the nodes, in the order of the request."""

    name: str
    datatype: str
    shape: list[int]
    data: list[Any] = Field(description="Row by row.")


class InferenceAnswer(BaseModel):
    """Predictions of all requested nodes, by one model version."""

    model_config = _example(
        model_name="cora",
        model_version="7",
        outputs=[
            {"name": "label", "datatype": "BYTES", "shape": [1], "data": ["3"]},
            {"name": "probabilities", "datatype": "FP64", "shape": [1, 3], "data": [0.01, 0.02, 0.97]},
        ],
    )

    model_name: str
    model_version: str
    id: str | None = Field(None, description="That of the request.")
    outputs: list[OutputTensor]


@open_router.get("/health/live", response_model=ServerState, responses=problems(), summary="Server live")
async def live() -> Response:
    """200 while the process responds, as `GET /healthz`."""
    return reply(ServerState())


@open_router.get("/health/ready", response_model=ServerReady, responses=problems(503), summary="Server ready")
async def ready(request: Request) -> Response:
    """200 when this process can predict now, as `GET /readyz/predictions`."""
    services_of(request).reader.predict_many(())
    return reply(ServerReady())


@open_router.get(
    "/models/{model}/ready", response_model=ModelReady, responses=problems(404, 503), summary="Model ready"
)
async def model_ready(request: Request, model: Name) -> Response:
    """200 when this process can predict with the model now."""
    return _ready(request, model, None)


@router.get("/models/{model}/versions/{version}/ready", include_in_schema=False)
async def version_ready(request: Request, model: Name, version: Version, caller: Caller) -> Response:
    """200 when this process can predict with this version now. Needs a key, because its version is not open."""
    return _ready(request, model, version)


def _ready(request: Request, model: str, version: str | None) -> Response:
    services = services_of(request)
    services.reader.predict_many(())
    _require(services.reader.facts, model, version)
    return reply(ModelReady(name=model))


@router.get("", response_model=ServerMetadata, responses=problems(401, 403, 503), summary="Server metadata")
async def server_metadata(caller: Caller) -> Response:
    """Name, version and extensions of the server."""
    return reply(ServerMetadata(name="lethe", version=VERSION, extensions=list(EXTENSIONS)))


@router.get(
    "/models/{model}", response_model=ModelMetadata, responses=problems(401, 403, 404, 503), summary="Model metadata"
)
@router.get(
    "/models/{model}/versions/{version}",
    include_in_schema=False,
)
async def model_metadata(request: Request, caller: Caller, model: Name, version: Version | None = None) -> Response:
    """Inputs and outputs of the model."""
    facts = services_of(request).reader.facts
    _require(facts, model, version)
    return reply_record(
        {
            "name": model,
            "versions": [str(facts.served.version)],
            "platform": _PLATFORM,
            "inputs": [_NODES],
            "outputs": outputs_of(facts.model),
        }
    )


_OBJECT: dict[str, Any] = {"type": "object"}
_REQUEST: dict[str, Any] = {"inputs": [{"name": INPUT, "datatype": "BYTES", "shape": [2], "data": ["12", "57"]}]}
#: Description in /docs of a body that the endpoint reads itself.
_BODY: dict[str, Any] = {
    "type": "object",
    "required": ["inputs"],
    "additionalProperties": False,
    "examples": [_REQUEST],
    "properties": {
        "id": {"type": "string", "description": "Returned in the answer."},
        "parameters": {**_OBJECT, "description": "`binary_data_output`: whether outputs are binary."},
        "inputs": {
            "type": "array",
            "minItems": 1,
            "maxItems": 1,
            "items": {
                "type": "object",
                "required": ["name", "datatype", "shape"],
                "additionalProperties": False,
                "properties": {
                    "name": {"const": INPUT},
                    "datatype": {"const": "BYTES"},
                    "shape": {"type": "array", "items": {"type": "integer"}, "description": "[n] or [n, 1]."},
                    "data": {"type": "array", "minItems": 1, "description": "Ids of nodes, flat or in rows of one."},
                    "parameters": {**_OBJECT, "description": "`binary_data_size`, in place of `data`."},
                },
            },
        },
        "outputs": {
            "type": "array",
            "description": "The outputs to return; default: all.",
            "items": {
                "type": "object",
                "required": ["name"],
                "additionalProperties": False,
                "properties": {
                    "name": {"type": "string"},
                    "parameters": {**_OBJECT, "description": "`binary_data`: whether this output is binary."},
                },
            },
        },
    },
}
_READS = {"requestBody": {"required": True, "content": {"application/json": {"schema": _BODY, "example": _REQUEST}}}}


@infer_router.post(
    "/models/{model}/infer",
    response_model=InferenceAnswer,
    responses=problems(401, 403, 404, 410, 413, 503),
    openapi_extra=_READS,
    summary="Infer",
)
@infer_router.post(
    "/models/{model}/versions/{version}/infer",
    include_in_schema=False,
)
async def infer(request: Request, caller: Caller, model: Name, version: Version | None = None) -> Response:
    """Predictions of several nodes by one model version, each as by `GET /predict/{node}`.

    If one of the ids is not a live node, the whole request is 404; it is 410 if all of these were deleted and the key
    also has deletions:read. The error names them.
    """
    services, json_size = services_of(request), request.headers.get(JSON_SIZE)
    require_tensors(request.headers.get("content-type"), json_size)
    body, limit = await request.body(), services.settings.max_nodes_per_request
    while True:
        facts = services.reader.facts
        _require(facts, model, version)
        inference = parsed(body, json_size, facts.model)
        if len(inference.nodes) > limit:
            raise BodyTooLarge(
                f"{len(inference.nodes)} nodes exceed the limit of {limit} per request.",
                "Split them into several requests.",
                max_nodes=limit,
            )
        found, predictions, missing = await predictions_for(services, caller, inference.nodes)
        # Another version, or another model, may have come since the facts were read.
        if found == facts.served.version:
            break
    if missing:
        await _refuse(services, caller, missing)
    made = await offload(len(predictions), lambda: answered(facts.model, found, inference, predictions))
    if made.json_size is None:
        return Response(made.body, media_type="application/json")
    return Response(made.body, media_type="application/octet-stream", headers={JSON_SIZE: str(made.json_size)})


def _require(facts: Facts, model: str, version: str | None) -> None:
    """Raise NotFound for another model than the served one, or another version."""
    if model != facts.model.name:
        raise NotFound("No model with this name is served.", "`GET /model` names the served model.")
    served = str(facts.served.version)
    if version not in (None, served):
        raise NotFound(
            f"This version of the model is not served; version {served} is.", "Leave the version out of the path."
        )


async def _refuse(services: Services, caller: ApiKey, missing: list[str]) -> None:
    """Raise NodeDeleted if all of the missing nodes are known to be deleted, else UnknownNodes."""
    deleted: set[str] = set()
    if Scope.DELETIONS_READ in caller.scopes:
        deleted = {*await services.deletions.tombstones.deleted_nodes(missing)}
    gone = [node for node in missing if node in deleted]
    unknown = [node for node in missing if node not in deleted]
    remedy = "Leave these ids out."
    if not unknown:
        raise NodeDeleted(f"Deleted on request: {_listed(gone)}.", remedy, deleted=gone)
    also = f" Deleted on request: {_listed(gone)}." if gone else ""
    raise UnknownNodes(f"Unknown nodes: {_listed(unknown)}.{also}", remedy, unknown=unknown, deleted=gone)


def _listed(nodes: list[str]) -> str:
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    return ", ".join(nodes[:_NAMED]) + more
