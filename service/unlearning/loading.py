"""A stored version on a device: the arrays and the state of it, and that state as it is stored."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model_store.base_store import Base
from model_store.gram_checkpoint import fits
from model_store.manifest import Manifest
from model_store.memory import require_memory, serving_needs
from model_store.versions import SpanArrays, VersionState
from projector.forgetting.batch import InputRows, ModelState
from projector.forgetting.gram import Gram, factorise
from projector.forgetting.live_graph import LiveGraph, label_gram
from projector.forgetting.projection import SpanState
from projector.network.blocks import by_block, side_by_side
from projector.network.sizes import Sizes


@dataclass(frozen=True, eq=False)
class Loaded:
    """What a version is on the device."""

    features: InputRows
    #: None for a model without labels among its inputs.
    labels: InputRows | None
    state: ModelState
    live_graph: LiveGraph
    #: Whether the Gram factors of the features are those of a checkpoint.
    from_checkpoint: bool


def load(
    manifest: Manifest, base: Base, version: VersionState, number: int, device: torch.device | str, gram: Gram | None
) -> Loaded:
    """Puts version `number` of a stored model on the device and factorises its Gram matrices.

    `gram` are the factors of the features as a checkpoint of that very version kept them. They are used when they fit
    the rows; otherwise, and for None, they are computed from the rows. Raises DeviceError, before any work, when the
    device has less free memory than that and later batches need.
    """
    graph, live = base.graph, version.live
    require_memory("Serving", serving_needs(manifest.spec, Sizes.of(graph)), device)
    live_graph = LiveGraph.of(
        graph, manifest.spec, manifest.diffusion, live=live, featured=version.featured, device=device
    )
    inputs = live_graph.inputs
    features = InputRows(inputs.features.rows, side_by_side(on_device(base.beta, device)))
    from_checkpoint = gram is not None and fits(gram, features.rows, version.featured, manifest.sigma_ref_squared)
    if gram is None or not from_checkpoint:
        gram = factorise(
            features.rows,
            version.featured,
            sigma_ref_squared=manifest.sigma_ref_squared,
            rank_tolerance=manifest.rank_tolerance,
        )
    state = ModelState(
        version=number,
        features=_span(version.features, gram, version.featured, device),
        labels=None,
        live=live,
        classes=graph.num_classes,
    )
    label_rows = None
    if inputs.labels is not None:
        label_rows = InputRows(inputs.labels.rows, side_by_side(on_device(base.label_beta, device)))
        gram, training = label_gram(graph, live, label_rows.rows)
        state = replace(state, labels=_span(version.labels, gram, training, device))
    return Loaded(features, label_rows, state, live_graph, from_checkpoint)


def version_state(state: ModelState) -> VersionState:
    """`state` as it is stored."""
    classes = state.classes
    no_labels = SpanArrays.untouched(np.zeros((0, classes, classes)))
    return VersionState(
        features=_arrays(state.features, classes),
        labels=no_labels if state.labels is None else _arrays(state.labels, classes),
        live=state.live,
        featured=state.features.in_span,
        rank=state.features.gram.rank,
    )


def _span(arrays: SpanArrays, gram: Gram, in_span: NDArray[np.bool_], device: torch.device | str) -> SpanState:
    W, B, T = (side_by_side(on_device(part, device)) for part in (arrays.weights, arrays.B, arrays.T))
    return SpanState(W, B, T, gram, in_span)


def _arrays(span: SpanState, classes: int) -> SpanArrays:
    return SpanArrays(*(by_block(part, classes).cpu().numpy() for part in (span.W, span.B, span.T)))


def on_device(array: NDArray[np.float64], device: torch.device | str) -> Tensor:
    """`array` as a tensor on the device."""
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
