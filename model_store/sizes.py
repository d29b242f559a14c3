"""Check that graph, coefficients and weights match a model's manifest."""

import numpy as np

from model_store.base.base import Base
from model_store.manifest import FeatureLayout, Manifest
from model_store.versions import VersionState


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
