"""What is measured of a stored version against the rows on the disk."""

import os
from collections.abc import Iterator

from model_store.base.base import SpanChunk
from model_store.store import Store
from model_store.versions import VersionState
from model_store.work import Work
from projector.forgetting.coefficients import span_residual


def stored_span_residual(store: Store, version: VersionState, work: Work | None = None) -> float:
    """The span residual of a version's weights, as read, against the rows on disk that are still in their span.

    The larger of the features' and, with label reuse, the labels'. It is a step of `work`. Raises StoreDamaged for rows
    that are not as they were written.
    """
    features, labels, work = version.features, version.labels, work or Work()
    work.begin("Measuring the span residual", store.manifest.nodes)
    rows = store.span_chunks(version.featured, parts=len(os.sched_getaffinity(0)))
    residual = span_residual(features.weights, features.T, *(_counted(part, work) for part in rows))
    if len(labels.weights) == 0:
        return residual
    return max(residual, span_residual(labels.weights, labels.T, store.label_span_chunks(version.live)))


def _counted(chunks: Iterator[SpanChunk], work: Work) -> Iterator[SpanChunk]:
    for chunk in chunks:
        yield chunk
        work.count(chunk.rows.stop - chunk.rows.start)
