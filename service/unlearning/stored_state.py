"""The state of a version as it is stored, and on a device."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model_store.versions import SpanArrays, VersionState
from projector.certified.publication import Publication
from projector.forgetting.batch import ModelState
from projector.forgetting.gram import Gram
from projector.forgetting.projection import SpanState
from projector.network.blocks import by_block, side_by_side


def version_state(state: ModelState, publication: Publication | None = None) -> VersionState:
    """`state`, and how it is published, as it is stored."""
    classes = state.classes
    no_labels = SpanArrays.untouched(np.zeros((0, classes, classes)))
    return VersionState(
        features=_arrays(state.features, classes),
        labels=no_labels if state.labels is None else _arrays(state.labels, classes),
        live=state.live,
        featured=state.features.in_span,
        rank=state.features.gram.rank,
        publication=publication,
    )


def span_state(arrays: SpanArrays, gram: Gram, in_span: NDArray[np.bool_], device: torch.device | str) -> SpanState:
    """One input's weights and coefficients on the device, with the Gram factors of what is `in_span` (n,)."""
    W, B, T = (side_by_side(on_device(part, device)) for part in (arrays.weights, arrays.B, arrays.T))
    return SpanState(W, B, T, gram, in_span)


def _arrays(span: SpanState, classes: int) -> SpanArrays:
    return SpanArrays(*(by_block(part, classes).cpu().numpy() for part in (span.W, span.B, span.T)))


def on_device(array: NDArray[np.float64], device: torch.device | str) -> Tensor:
    """`array` as a tensor on the device."""
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
