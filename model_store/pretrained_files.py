"""Read weights trained elsewhere from files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from model_store.disk import untrusted_arrays
from model_store.disk.untrusted_arrays import ArraysUnreadable
from projector.graph.graph import some
from projector.training.pretrained import PretrainedWeights, WeightsError

_WEIGHTS, _LABEL_WEIGHTS = "W", "label_W"
_REMEDY = f"Save the weights as one array {_WEIGHTS!r} of shape (blocks, features, classes)."


def read_weights(path: Path) -> PretrainedWeights:
    """Return the array `W`, and `label_W` under label reuse, of a `.safetensors` or `.npz` file.

    Raises WeightsError if the file is missing or contains something else. Pickled objects are refused.
    """
    arrays = _arrays(path)
    if others := arrays.keys() - {_WEIGHTS, _LABEL_WEIGHTS}:
        raise WeightsError(f"{path} also holds {some(sorted(others))}, which is not read.", f"Remove it. {_REMEDY}")
    if _WEIGHTS not in arrays:
        raise WeightsError(f"{path} holds no array {_WEIGHTS!r}.", _REMEDY)
    label_weights = arrays.get(_LABEL_WEIGHTS)
    return PretrainedWeights(
        _numbers(path, _WEIGHTS, arrays[_WEIGHTS]),
        None if label_weights is None else _numbers(path, _LABEL_WEIGHTS, label_weights),
    )


def _arrays(path: Path) -> Mapping[str, NDArray[Any]]:
    if not path.is_file():
        raise WeightsError(f"The file {path} does not exist.", _REMEDY)
    try:
        if path.suffix == ".safetensors":
            return _safetensors(path)
        if path.suffix == ".npz":
            return untrusted_arrays.read_npz(path, (_WEIGHTS, _LABEL_WEIGHTS), also=lambda name: True)
    except ArraysUnreadable as error:
        raise WeightsError(error.detail, error.remedy) from error
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise WeightsError(f"{path} is not a {path.suffix} file of plain arrays: it is damaged.", _REMEDY) from error
    raise WeightsError(f"{path} ends neither in .safetensors nor in .npz.", _REMEDY)


def _safetensors(path: Path) -> dict[str, NDArray[Any]]:
    """Return all arrays of the file. bfloat16, which numpy lacks, becomes float32."""
    untrusted_arrays.require_room(path, [path.stat().st_size])
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        json.loads(file.read(min(length, path.stat().st_size)), object_pairs_hook=_each_once)
    arrays = {}
    with safe_open(path, framework="pt") as file:
        for name in sorted(file.keys()):
            tensor = file.get_tensor(name)
            arrays[name] = (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()
    return arrays


def _each_once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of a JSON object. Raises ArraysUnreadable for a repeated one, where readers keep the last."""
    names = [name for name, _ in members]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ArraysUnreadable(f"The file holds {some(sorted(twice))} twice.", _REMEDY)
    return dict(members)


def _numbers(path: Path, name: str, array: NDArray[Any]) -> NDArray[np.float64]:
    if array.ndim != 3 or not np.issubdtype(array.dtype, np.floating):
        raise WeightsError(f"{name!r} in {path} is {array.dtype} of shape {array.shape}.", _REMEDY)
    if not np.isfinite(array).all():
        raise WeightsError(f"{name!r} in {path} has NaN or infinite values.", "Train these weights again.")
    return array.astype(np.float64)
