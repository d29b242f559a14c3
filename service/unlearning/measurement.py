"""What is measured of a stored version, read afresh from disk."""

from model_store.store import Store
from model_store.versions import VersionRef
from projector.forgetting.coefficients import span_residual


def stored_span_residual(store: Store, ref: VersionRef, *, digest: str | None = None) -> float:
    """The span residual of a version's weights against the rows on disk that are still in their span.

    The larger of the features' and, with label reuse, the labels'. `digest`, when given, is what the version's
    manifest must have as SHA-256. Raises StoreDamaged for what is not as it was written.
    """
    version = store.read_version(ref, digest=digest)
    features, labels = version.features, version.labels
    residual = span_residual(features.weights, features.T, store.span_chunks(version.featured))
    if len(labels.weights) == 0:
        return residual
    return max(residual, span_residual(labels.weights, labels.T, store.label_span_chunks(version.live)))
