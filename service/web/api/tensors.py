"""Requests and answers of the Open Inference Protocol: node ids as a tensor of BYTES, predictions as tensors.

https://github.com/kserve/open-inference-protocol, specification/protocol/inference_rest.md. Tensors may also follow the
JSON in binary form, as in the extension `binary_tensor_data` of NVIDIA Triton, whose clients use it by default.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import orjson
from pydantic import TypeAdapter, ValidationError

from service.domain.fields import NodeIds
from service.errors import LetheError
from service.log.canonical import parse_json
from service.predictions.facts import ModelFacts
from service.predictions.reader import Prediction, Scores

#: Name of the input, and of the header field with the size of the JSON before binary tensors.
INPUT = "node"
JSON_SIZE = "Inference-Header-Content-Length"
EXTENSIONS = ("binary_tensor_data",)

_LENGTH = struct.Struct("<I")
_NODES = TypeAdapter[list[str]](NodeIds)


class InvalidInference(LetheError):
    """The inference request does not follow the protocol, or asks for tensors that the model does not have."""

    status = 400
    slug = "invalid-inference"
    title = "Invalid inference request"


class NoTensors(LetheError):
    """The media type of the body holds no tensors."""

    status = 415
    slug = "unsupported-media-type"
    title = "Unsupported media type"


class _Input(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] = {}
    data: list[Any] | msgspec.UnsetType = msgspec.UNSET


class _Output(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    parameters: dict[str, Any] = {}


class _Request(msgspec.Struct, forbid_unknown_fields=True):
    inputs: list[_Input]
    id: str | msgspec.UnsetType = msgspec.UNSET
    parameters: dict[str, Any] = {}
    outputs: list[_Output] = []


@dataclass(frozen=True)
class Inference:
    """A parsed request."""

    id: str | None
    nodes: list[str]
    #: Names of the requested outputs, and whether each is to be binary.
    outputs: dict[str, bool]


def outputs_of(facts: ModelFacts) -> list[dict[str, Any]]:
    """Describe the outputs of a model. `labels` names the columns."""
    columns = {"labels": list(facts.classes)}
    if facts.regression is not None:
        return [{"name": "scores", "datatype": "FP64", "shape": [-1, len(facts.classes)], "parameters": columns}]
    return [
        {"name": "label", "datatype": "BYTES", "shape": [-1]},
        {"name": "probabilities", "datatype": "FP64", "shape": [-1, len(facts.classes)], "parameters": columns},
    ]


def require_tensors(content_type: str | None, json_size: str | None) -> None:
    """Raise NoTensors for a media type that a body of tensors does not have. Triton's clients state none."""
    essence = None if content_type is None else content_type.partition(";")[0].strip().lower()
    if essence not in (None, "application/json" if json_size is None else "application/octet-stream"):
        raise NoTensors(
            "The Content-Type of the body is not that of an inference request.",
            f"Send application/json; or application/octet-stream with {JSON_SIZE}, if tensors follow the JSON.",
        )


def parsed(body: bytes, json_size: str | None, facts: ModelFacts) -> Inference:
    """Parse a body; `json_size` is the header field JSON_SIZE. Raises InvalidInference and RepeatedMember."""
    if json_size is None:
        json_size = str(len(body))
    if not (json_size.isascii() and json_size.isdecimal()) or len(json_size) > 18 or int(json_size) > len(body):
        raise InvalidInference(
            f"{JSON_SIZE} is not the size of the JSON at the beginning of the body.", "Send its number of bytes."
        )
    document, rest = body[: int(json_size)], body[int(json_size) :]
    try:
        content = parse_json(document)
        # What cannot be written could not be in an answer, or in a refusal.
        orjson.dumps(content)
        request = msgspec.convert(content, _Request)
    except msgspec.ValidationError as error:
        raise InvalidInference(f"The body does not follow the protocol: {error}.", "See /docs.") from None
    except TypeError:
        raise InvalidInference(
            "The body has half a surrogate pair, or too large an integer.", "Leave it out."
        ) from None
    except ValueError:
        raise InvalidInference("The body is not UTF-8 encoded JSON.", "Send an inference request; see /docs.") from None
    if [one.name for one in request.inputs] != [INPUT]:
        given = ", ".join(repr(one.name) for one in request.inputs[:5]) or "none"
        raise InvalidInference(f"The model has one input, {INPUT!r}; the request has {given}.", f"Send {INPUT!r} once.")
    return Inference(
        None if request.id is msgspec.UNSET else request.id,
        _nodes(request.inputs[0], rest),
        _wanted(request, [one["name"] for one in outputs_of(facts)]),
    )


def _nodes(given: _Input, rest: bytes) -> list[str]:
    parameters = dict(given.parameters)
    # What MLServer's clients send with strings.
    if parameters.get("content_type") == "str":
        del parameters["content_type"]
    size = parameters.pop("binary_data_size", None)
    _refuse_parameters(parameters, f"the input {INPUT!r}")
    if given.datatype != "BYTES":
        raise InvalidInference(f"The input {INPUT!r} has the datatype {given.datatype}.", "Send BYTES: ids of nodes.")
    is_column = len(given.shape) == 2 and given.shape[1] == 1
    if len(given.shape) != 1 and not is_column:
        raise InvalidInference(f"The input {INPUT!r} has the shape {given.shape}.", "Send the shape [n] or [n, 1].")
    if size is None:
        values = [] if given.data is msgspec.UNSET else given.data
        if any(isinstance(one, list) for one in values):
            values = [one[0] if isinstance(one, list) and len(one) == 1 else one for one in values]
        if rest:
            raise InvalidInference("Bytes follow the JSON in the body.", "State `binary_data_size` of the input.")
    elif given.data is not msgspec.UNSET or size != len(rest):
        raise InvalidInference(
            "`binary_data_size` is not the number of bytes after the JSON, or `data` is given as well.",
            "Send the ids once: as `data`, or in binary form.",
        )
    else:
        values = _strings(rest)
    if math.prod(given.shape) != len(values):
        raise InvalidInference(
            f"The input {INPUT!r} has the shape {given.shape} and {len(values)} ids.", "Send as many as the shape says."
        )
    try:
        return _NODES.validate_python(values)
    except ValidationError as error:
        fault = error.errors(include_input=False)[0]["msg"]
        raise InvalidInference(
            f"The input {INPUT!r} is not a list of node ids: {fault}.", "Send at least one id, each as a string."
        ) from None


def _strings(data: bytes) -> list[str]:
    """Return the elements of a binary BYTES tensor: each has its length (uint32, little-endian) before it."""
    found, at = [], 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        if end > len(data) or at + 4 > len(data):
            raise InvalidInference("The binary tensor ends within an element.", "Send each length, then the bytes.")
        try:
            found.append(data[at + 4 : end].decode())
        except UnicodeDecodeError:
            raise InvalidInference("The binary tensor has an element that is not UTF-8.", "Send UTF-8.") from None
        at = end
    return found


def _wanted(request: _Request, known: Sequence[str]) -> dict[str, bool]:
    parameters = dict(request.parameters)
    default = _flag(parameters, "binary_data_output", False)
    _refuse_parameters(parameters, "the request")
    wanted: dict[str, bool] = {}
    for one in request.outputs:
        if one.name not in known or one.name in wanted:
            raise InvalidInference(
                f"The output {one.name!r} is unknown or requested twice.", f"The model has {', '.join(known)}."
            )
        parameters = dict(one.parameters)
        wanted[one.name] = _flag(parameters, "binary_data", default)
        _refuse_parameters(parameters, f"the output {one.name!r}")
    return wanted or dict.fromkeys(known, default)


def _flag(parameters: dict[str, Any], name: str, default: bool) -> bool:
    value = parameters.pop(name, default)
    if not isinstance(value, bool):
        raise InvalidInference(f"The parameter {name!r} is not true or false.", "Send a boolean.")
    return value


def _refuse_parameters(parameters: dict[str, Any], of: str) -> None:
    for name in parameters:
        raise InvalidInference(f"The parameter {name[:100]!r} of {of} is unknown.", "Leave it out; see /docs.")


@dataclass(frozen=True)
class Answered:
    """The body of an answer, and the size of its JSON if binary tensors follow."""

    body: bytes
    json_size: int | None


def answered(
    facts: ModelFacts, version: int, inference: Inference, predictions: Sequence[Prediction | Scores]
) -> Answered:
    """Return the answer with the predictions of all requested nodes."""
    described = {one["name"]: one for one in outputs_of(facts)}
    outputs: list[dict[str, Any]] = []
    tail = bytearray()
    for name, is_binary in inference.outputs.items():
        made = {"name": name, "datatype": described[name]["datatype"], "shape": [len(predictions)]}
        data: Sequence[str | float]
        if name == "label":
            data = labels = [one.label for one in predictions if isinstance(one, Prediction)]
            binary = b"".join(_LENGTH.pack(len(text)) + text for text in (label.encode() for label in labels))
        else:
            rows = [one.scores if isinstance(one, Scores) else one.probabilities for one in predictions]
            data = [value for row in rows for value in row.values()]
            binary = np.array(data, dtype="<f8").tobytes()
            made["shape"] = [len(predictions), len(facts.classes)]
        if is_binary:
            tail += binary
            outputs.append({**made, "parameters": {"binary_data_size": len(binary)}})
        else:
            outputs.append({**made, "data": data})
    echoed = {} if inference.id is None else {"id": inference.id}
    document = orjson.dumps({"model_name": facts.name, "model_version": str(version), **echoed, "outputs": outputs})
    return Answered(document + bytes(tail), len(document) if any(inference.outputs.values()) else None)
