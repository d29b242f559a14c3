"""Export the weights of a stored model for predictions elsewhere."""

from typing import IO

import numpy as np

from model_store.store import Store
from projector.exported import ExportedModel
from projector.training.pretrained import WeightsError


def export_weights(store: Store, file: IO[bytes]) -> int:
    """Write the committed version's weights, class names and settings to `file` as an `.npz`. Returns its version.

    Columns of canaries and injected channels are left out, and scaled columns scaled back: the weights are for the
    dataset's own features. Raises WeightsError for a model that needs more than these to predict, or that is published
    with noise.
    """
    ref, manifest = store.current(), store.manifest
    state = store.read_version(ref)
    _require_exportable(store, noisy=state.publication is not None)
    W = state.features.weights
    if manifest.column_scale is not None:
        W = W * np.exp2(np.array(manifest.column_scale, dtype=np.float64))[:, None]
    own = np.setdiff1d(np.arange(manifest.features), manifest.injected_columns)
    exported = ExportedModel(
        weights=W[:, own],
        spec=manifest.spec,
        class_names=manifest.classes,
        real_valued=manifest.regression is not None,
        temperature=manifest.temperature,
        name=manifest.name,
        version=ref.version,
    )
    exported.write(file)
    return ref.version


def _require_exportable(store: Store, *, noisy: bool) -> None:
    spec = store.manifest.spec
    reasons = {
        "is published with noise, and the exact weights would undo what the noise promises": noisy,
        "reuses the labels of training nodes, which the file must not have": bool(spec.label_hops),
        "uses adaptive diffusion, whose operators depend on the features and labels of the graph": spec.diffusion,
        "has an MLP, which the model does not store": bool(spec.mlp_width),
    }
    for reason, applies in reasons.items():
        if applies:
            raise WeightsError(f"The model {store.manifest.name} {reason}.", "Ask the service for predictions.")
