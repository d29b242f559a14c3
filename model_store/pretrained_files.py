"""Weights that were trained elsewhere, in files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from model_store.disk import untrusted_arrays
from model_store.disk.untrusted_arrays import ArraysUnreadable
from projector.training.pretrained import PretrainedWeights, WeightsError

_WEIGHTS, _LABEL_WEIGHTS = "W", "label_W"
_REMEDY = f"Save the weights as one array {_WEIGHTS!r} of shape (blocks, features, classes)."


def read_weights(path: Path) -> PretrainedWeights:
    """The array `W`, and `label_W` where there is label reuse, of a `.safetensors` or `.npz` file.

    Raises WeightsError when there is no such file, or it holds something else; pickled objects are refused.
    """
    arrays = _arrays(path)
    if _WEIGHTS not in arrays:
        raise WeightsError(f"{path} holds no array {_WEIGHTS!r}.", _REMEDY)
    label_weights = arrays.get(_LABEL_WEIGHTS)
    return PretrainedWeights(
        _numbers(path, _WEIGHTS, arrays[_WEIGHTS]),
        None if label_weights is None else _numbers(path, _LABEL_WEIGHTS, label_weights),
    )


def _arrays(path: Path) -> Mapping[str, NDArray[Any]]:
    if not path.is_file():
        raise WeightsError(f"There is no file {path}.", _REMEDY)
    try:
        if path.suffix == ".safetensors":
            return _safetensors(path)
        if path.suffix == ".npz":
            return untrusted_arrays.read_npz(path, (_WEIGHTS, _LABEL_WEIGHTS))
    except ArraysUnreadable as error:
        raise WeightsError(error.detail, error.remedy) from error
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise WeightsError(f"{path} is not a {path.suffix} file of plain arrays: it is damaged.", _REMEDY) from error
    raise WeightsError(f"{path} ends neither in .safetensors nor in .npz.", _REMEDY)


def _safetensors(path: Path) -> dict[str, NDArray[Any]]:
    """Those of the two arrays that it holds; numpy has no bfloat16, whose values single precision holds."""
    untrusted_arrays.require_room(path, [path.stat().st_size])
    arrays = {}
    with safe_open(path, framework="pt") as file:
        for name in {_WEIGHTS, _LABEL_WEIGHTS}.intersection(file.keys()):
            tensor = file.get_tensor(name)
            arrays[name] = (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()
    return arrays


def _numbers(path: Path, name: str, array: NDArray[Any]) -> NDArray[np.float64]:
    if array.ndim != 3 or not np.issubdtype(array.dtype, np.floating):
        raise WeightsError(f"{name!r} in {path} is {array.dtype} of shape {array.shape}.", _REMEDY)
    if not np.isfinite(array).all():
        raise WeightsError(f"{name!r} in {path} has NaN or infinite values.", "Train these weights again.")
    return array.astype(np.float64)
