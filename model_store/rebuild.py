"""Rebuild a stored model's dataset and specification with weights trained elsewhere."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from model_store.build import build_model, lasting
from model_store.store import Store
from projector.training.pretrained import PretrainedWeights, WeightsError
from projector.training.scaling import rescale


def with_weights(source: Path, pretrained: PretrainedWeights, target: Path) -> Store:
    """Write to `target` the model in `source` with the pretrained weights, trained on to the optimum.

    Raises WeightsError if they do not belong to it, or if nodes have been deleted from it; otherwise as `build_model`.
    """
    store = Store.open(source)
    if store.current().version != 0:
        raise WeightsError(
            f"The model in {source} was served, so deleted nodes are missing from it.",
            "Give the folder that `./lethe train` wrote, before it was served.",
        )
    manifest, graph = store.manifest, store.load_base().graph
    if manifest.column_scale is not None:
        graph = replace(graph, features=rescale(graph.features, -np.array(manifest.column_scale, dtype=np.int64)))
    built = build_model(
        graph,
        manifest.spec,
        name=manifest.name,
        dataset=manifest.dataset,
        split=manifest.split,
        warnings=lasting(manifest.warnings),
        injected_channels=manifest.injected_channels,
        canaries=manifest.canaries,
        encoder=manifest.encoder,
        pretrained=pretrained,
    )
    return built.write(target)
