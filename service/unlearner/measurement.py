"""Measure a stored version against the rows on disk, for the unlearner and `lethe audit recheck`."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from model_store.base.span_chunks import SpanChunk
from model_store.store import Store
from model_store.versions import VersionRef, VersionState
from model_store.work import Work
from projector.forgetting.coefficients import span_residual
from service.unlearner.committed import Committed


def stored_span_residual(store: Store, version: VersionState, work: Work | None = None) -> float:
    """Return the span residual of a version's stored weights against the rows on disk that are in their span.

    The larger of the features' and, with label reuse, the labels' residual. A step of `work`. Raises StoreDamaged for
    rows that differ from what was written.
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


@dataclass(frozen=True)
class Measured:
    """Figures measured from the files of a version."""

    #: SHA-256, hex, of the weights.
    weights_sha256: str
    #: Rank of the remaining nodes' features, as measured and as recorded in the version.
    rank: int
    rank_written: int
    live_nodes: int
    #: None while a repair's coefficients are still to be written.
    span_residual: float | None
    #: Bound on |W - W_u|_F / |W|_F, with W_u the weights of retraining; None for a loss without certificate.
    distance_bound_relative: float | None


def measure(
    store: Store, ref: VersionRef, *, digest: str, device: torch.device | str, work: Work | None = None
) -> Measured:
    """Read every row and weight of a version, verify them against `digest` and the store's digests, and measure.

    Each is a step of `work`. Raises StoreDamaged for data that differs from what was written, and DeviceError if the
    device has too little memory.
    """
    version = store.read_version(ref, digest=digest)
    work = work or Work()
    base = store.load_base(work)
    work.begin("Measuring the weights")
    committed = Committed.load(store.manifest, base, version, ref.version, device)
    certificate = committed.certificate
    stale = store.stale_coefficients(ref) or store.is_ungrown(ref)
    return Measured(
        weights_sha256=store.weights_sha256(ref),
        rank=committed.state.features.gram.rank,
        rank_written=version.rank,
        live_nodes=int(version.live.sum()),
        span_residual=None if stale else stored_span_residual(store, version),
        distance_bound_relative=None if certificate is None else certificate.relative,
    )
