"""Check that graph, coefficients and weights match a model's manifest."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.base.base import Base
from model_store.base.edit import Edit
from model_store.manifest import FeatureLayout, Manifest
from model_store.versions import VersionState
from projector.graph.graph import LARGEST_WEIGHT, NO_LABEL, SMALLEST_WEIGHT


def unfit(manifest: Manifest, state: VersionState, nodes: range) -> str | None:
    """Return what part of a version's state contradicts the manifest; None if it fits.

    `nodes` are the numbers of nodes that it may have.
    """
    blocks, label_blocks, classes = len(manifest.spec.block_hops), manifest.spec.label_hops, len(manifest.classes)
    shapes = {"features": (blocks, manifest.features, classes), "labels": (label_blocks, classes, classes)}
    for name, shape in shapes.items():
        for part, array in vars(getattr(state, name)).items():
            if array.shape != shape or array.dtype != np.float64:
                return f"{name}.{part} as {array.dtype} of shape {array.shape}"
            if not np.isfinite(array).all():
                return f"{name}.{part} with values that are not finite"
    for name, mask in (("live", state.live), ("featured", state.featured)):
        if mask.ndim != 1 or mask.size not in nodes or mask.size != state.live.size:
            return f"{name} of shape {mask.shape}"
    if state.rank > manifest.features:
        return f"a rank of {state.rank}"
    scale = manifest.sigma_ref_squared if state.sigma_ref_squared is None else state.sigma_ref_squared
    if not manifest.sigma_ref_squared <= scale < np.inf:
        return f"a scale of {scale}"
    return None


def check_sizes(manifest: Manifest, base: Base, first: VersionState) -> None:
    """Raise ValueError, naming all differences, unless these match `manifest`."""
    graph, blocks, label_blocks = base.graph, len(manifest.spec.block_hops), manifest.spec.label_hops
    nodes, classes = manifest.nodes, len(manifest.classes)
    public_nodes = 0 if manifest.mlp is None else manifest.mlp.public_nodes
    layout = FeatureLayout.DENSE if isinstance(graph.features, np.ndarray) else FeatureLayout.CSR
    checks = {
        "nodes": (manifest.nodes, graph.nodes),
        "edges": (manifest.edges, graph.edges),
        "features": (manifest.features, graph.num_features),
        "classes": (manifest.classes, graph.class_names),
        "feature_layout": (manifest.feature_layout, layout),
        "feature_dtype": (manifest.feature_dtype, graph.features.dtype.name),
        "beta": ((blocks, nodes, classes), base.beta.shape),
        "label_beta": ((label_blocks, nodes, classes), base.label_beta.shape),
        "weights": ((blocks, manifest.features, classes), first.features.weights.shape),
        "label_weights": ((label_blocks, classes, classes), first.labels.weights.shape),
        "public": (((nodes,), public_nodes), (base.public.shape, int(base.public.sum()))),
    }
    wrong = [
        f"{name}: {said} in the manifest, {found} given" for name, (said, found) in checks.items() if said != found
    ]
    if wrong:
        raise ValueError("; ".join(wrong))


def unfit_edit(manifest: Manifest, edit: Edit, *, weighted: bool) -> str | None:
    """Return what part of an edit contradicts the manifest or other parts; None if it fits.

    `weighted` says whether edges of the graph have weights.
    """
    new, old, classes = len(edit.ids), edit.label_rows.size, len(manifest.classes)
    arrays: dict[str, tuple[NDArray[Any], tuple[int, ...], type]] = {
        "labels": (edit.labels, (new,), np.int64),
        "masks": (edit.masks, (new,), np.uint8),
        "feature_rows": (edit.feature_rows, (edit.feature_rows.size,), np.int64),
        "label_rows": (edit.label_rows, (old,), np.int64),
        "labels_of_rows": (edit.labels_of_rows, (old,), np.int64),
        "masks_of_rows": (edit.masks_of_rows, (old,), np.uint8),
        "edges": (edit.edges, (len(edit.edges), 2), np.int64),
    }
    if edit.edge_weight is not None:
        arrays["edge_weight"] = (edit.edge_weight, (len(edit.edges),), np.float64)
        if not weighted:
            return "weights of edges in a graph without weights"
    for each in edit.coefficients or ():
        arrays["coefficients"] = (each.beta, (each.beta.shape[0], each.rows.size, classes), np.float64)
    real_valued = manifest.regression is not None
    for name, targets, rows in (("targets", edit.targets, new), ("targets_of_rows", edit.targets_of_rows, old)):
        if (targets is not None) != (real_valued and rows > 0):
            return f"no {name}" if targets is None else f"{name} without need"
        if targets is not None:
            arrays[name] = (targets, (rows, classes), np.float64)
    for name, (array, shape, dtype) in arrays.items():
        if array.shape != shape or array.dtype != dtype:
            return f"{name} as {array.dtype} of shape {array.shape}"
    return _unfit_rows(edit, 1 if real_valued else classes) or _unfit_features(manifest, edit)


def _unfit_rows(edit: Edit, classes: int) -> str | None:
    earlier, new = np.split(edit.feature_rows, [max(edit.feature_rows.size - len(edit.ids), 0)])
    if not np.array_equal(new, np.arange(edit.first_row, edit.nodes)):
        return "feature_rows that do not end in the new rows"
    for name, rows in (("feature_rows", earlier), ("label_rows", edit.label_rows)):
        if rows.size and (rows[0] < 0 or rows[-1] >= edit.first_row or (np.diff(rows) <= 0).any()):
            return f"{name} that are not ascending rows below {edit.first_row}"
    if edit.edges.size and (edit.edges.min() < 0 or edit.edges.max() >= edit.nodes):
        return f"edges that do not join rows below {edit.nodes}"
    weights = np.ones(1) if edit.edge_weight is None else edit.edge_weight
    if not ((weights >= SMALLEST_WEIGHT) & (weights <= LARGEST_WEIGHT)).all():
        return f"weights outside of {SMALLEST_WEIGHT:g} to {LARGEST_WEIGHT:g}"
    labels = np.concatenate([edit.labels, edit.labels_of_rows])
    if labels.size and (labels.min() < NO_LABEL or labels.max() >= classes):
        return f"labels outside of -1 to {classes - 1}"
    return None


def _unfit_features(manifest: Manifest, edit: Edit) -> str | None:
    features = edit.features
    if features is None:
        return "no features" if edit.feature_rows.size else None
    layout = FeatureLayout.DENSE if isinstance(features, np.ndarray) else FeatureLayout.CSR
    if layout is not manifest.feature_layout:
        return f"{layout} features"
    if features.shape != (edit.feature_rows.size, manifest.features):
        return f"features of shape {features.shape}"
    if features.dtype != np.dtype(manifest.feature_dtype):
        return f"features as {features.dtype}"
    values = features if isinstance(features, np.ndarray) else features.data
    return None if np.isfinite(values).all() else "features that are not finite"
