"""What is measured of a stored version against the rows on the disk."""

import os

from model_store.store import Store
from model_store.versions import VersionState
from projector.forgetting.coefficients import span_residual


def stored_span_residual(store: Store, version: VersionState) -> float:
    """The span residual of a version's weights, as read, against the rows on disk that are still in their span.

    The larger of the features' and, with label reuse, the labels'. Raises StoreDamaged for rows that are not as they
    were written.
    """
    features, labels = version.features, version.labels
    rows = store.span_chunks(version.featured, parts=len(os.sched_getaffinity(0)))
    residual = span_residual(features.weights, features.T, *rows)
    if len(labels.weights) == 0:
        return residual
    return max(residual, span_residual(labels.weights, labels.T, store.label_span_chunks(version.live)))
