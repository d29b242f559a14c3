"""The committed state of the model, on the device and as stored, and the computations beside it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model_store.base.base import Base
from model_store.base.edit import Edit, EditedRows
from model_store.gram_checkpoint import fits
from model_store.manifest import Manifest
from model_store.memory import available_bytes, require_memory, serving_needs
from model_store.versions import SpanArrays, VersionState
from model_store.work import Work
from projector.certified.mechanism import shown
from projector.certified.publication import Publication
from projector.device import on_host
from projector.forgetting.batch import InjectedColumn, InputRows, ModelState, carried_columns
from projector.forgetting.certificate import Certificate, certifiable
from projector.forgetting.gram import Gram, factorise
from projector.forgetting.joining import JoinedRows
from projector.forgetting.live_graph import LiveGraph, label_gram
from projector.forgetting.optimum import at_optimum, stacked
from projector.forgetting.preconditioner import Preconditioner
from projector.forgetting.projection import SpanState
from projector.forgetting.repair import RepairOutcome, RepairRun
from projector.forgetting.training_rows import TrainingRows
from projector.forgetting.update import HeldModel, NotFinite, Updated, require_finite
from projector.graph.external_ids import NodeIds
from projector.network.blocks import by_block, side_by_side
from projector.network.sizes import Sizes
from projector.parallel.workers import Workers
from projector.solvers.objective import Objective
from service.domain.snapshot import Snapshot
from service.domain.versions import Drift


def version_state(state: ModelState, publication: Publication | None = None) -> VersionState:
    """Return `state` and its publication in the stored form."""
    classes = state.classes
    no_labels = SpanArrays.untouched(np.zeros((0, classes, classes)))
    return VersionState(
        features=_arrays(state.features, classes),
        labels=no_labels if state.labels is None else _arrays(state.labels, classes),
        live=state.live,
        featured=state.features.in_span,
        rank=state.features.gram.rank,
        publication=publication,
        sigma_ref_squared=state.features.gram.sigma_ref_squared,
    )


def span_state(arrays: SpanArrays, gram: Gram, in_span: NDArray[np.bool_], device: torch.device | str) -> SpanState:
    """Put one input's weights and coefficients on the device, with the Gram factors of the rows `in_span` (n,)."""
    W, B, T = (side_by_side(on_device(part, device)) for part in (arrays.weights, arrays.B, arrays.T))
    return SpanState(W, B, T, gram, in_span)


def _arrays(span: SpanState, classes: int) -> SpanArrays:
    return SpanArrays(*(by_block(part, classes).cpu().numpy() for part in (span.W, span.B, span.T)))


def on_device(array: NDArray[np.float64], device: torch.device | str) -> Tensor:
    """Return `array` as a tensor on the device."""
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


@dataclass(frozen=True, eq=False)
class Prepared(Updated):
    """A batch computed beside the committed state: the state to commit, and its measurements."""

    #: How to publish it with noise; None to publish it without.
    publication: Publication | None
    snapshot: Snapshot
    #: Nodes whose labels were removed, or are replaced, (r,).
    label_rows: NDArray[np.int64]
    #: What joins, and what it replaces, for the disk; None if nothing does.
    edit: Edit | None


@dataclass(frozen=True, eq=False)
class PreparedRepair:
    """A finished repair of the committed state, as the next version."""

    state: ModelState
    outcome: RepairOutcome
    publication: Publication | None
    snapshot: Snapshot
    repair: RepairRun


def snapshot_of(state: ModelState, live_graph: LiveGraph, logits: Tensor | None = None) -> Snapshot:
    """Predict with `state`; pass `logits` (n, C) if they are known."""
    outputs = live_graph.probabilities(state, logits)
    scores = {f"score_{name}": each.score(outputs) for name, each in live_graph.held_out.items()}
    drift = Drift(training_nodes=live_graph.training_rows.size, **scores)
    return Snapshot(state.version, outputs, state.live, live_graph.propagator.edges, drift)


def finite(state: ModelState, snapshot: Snapshot) -> Snapshot:
    """Return `snapshot` if it and its `state` are finite; raise NotFinite otherwise."""
    require_finite(state)
    if not np.isfinite(snapshot.probabilities).all():
        raise NotFinite("The batch would make predictions that are not finite; it was not applied.")
    return snapshot


@dataclass(eq=False)
class Committed:
    """The committed version of one model on one device; `forget` and `replace` move to another version."""

    features: InputRows
    #: None for a model without label inputs.
    labels: InputRows | None
    state: ModelState
    live_graph: LiveGraph
    training_rows: TrainingRows
    #: External ids of the live nodes; owned by this object.
    node_ids: NodeIds
    #: The nodes declared public, (n,). An MLP was trained on them, and they are never deleted.
    public: NDArray[np.bool_]
    #: Columns of the features whose rows of W are monitored.
    injected: Sequence[InjectedColumn]
    #: The regularization strength lambda.
    regularization: float
    #: The version whose Gram factors came from a checkpoint.
    _checkpointed: int | None
    #: How this version is published with noise; None without.
    publication: Publication | None = None
    _certificate: Certificate | None = None
    #: That of its predictions, once they were made.
    drift: Drift = field(default_factory=Drift)
    #: Columns per sweep of products with P over all classes, for counting.
    sweep_columns: int = 0

    @classmethod
    def load(
        cls,
        manifest: Manifest,
        base: Base,
        version: VersionState,
        number: int,
        device: torch.device | str,
        *,
        stale_coefficients: bool = False,
        edited: Sequence[EditedRows] = (),
        gram: Gram | None = None,
        work: Work | None = None,
    ) -> "Committed":
        """Put version `number` of a stored model on the device and factorise its Gram matrices.

        `gram` holds the features' factors from a checkpoint of this very version. They are used if they fit the rows;
        otherwise, and for None, the factors are computed from the rows.

        With `stale_coefficients` those in `base` belong to an earlier version. They are completed by the rows in
        `edited`, of features and of labels, or, without any, rebuilt from the weights, which must be an optimum then.
        Begins a step of `work`, which counts products from then on. Raises DeviceError, before any work, if the device
        lacks the free memory for this and later batches.
        """
        graph, live, work = base.graph, version.live, work or Work()
        work.begin("Making operators and factors")
        require_memory("Serving", serving_needs(manifest.spec, Sizes.of(graph), device), device)
        live_graph = LiveGraph.of(
            graph,
            manifest.spec,
            manifest.diffusion,
            temperature=manifest.temperature,
            live=live,
            featured=version.featured,
            device=device,
            count=work.count,
        )
        inputs = live_graph.inputs
        features, labels = InputRows(inputs.features.rows, on_device(base.beta, device)), None
        scale = manifest.sigma_ref_squared if version.sigma_ref_squared is None else version.sigma_ref_squared
        kept = gram is not None and fits(gram, features.rows, version.featured, scale)
        if gram is None or not kept:
            gram = factorise(
                features.rows,
                version.featured,
                sigma_ref_squared=scale,
                rank_tolerance=manifest.rank_tolerance,
            )
        gram = gram.compact(features.rows, version.featured)
        span = span_state(version.features, gram, version.featured, device)
        state = ModelState(version=number, features=span, labels=None, live=live, classes=graph.num_classes)
        if inputs.labels is not None:
            labels = InputRows(inputs.labels.rows, on_device(base.label_beta, device))
            gram, training = label_gram(graph, live, labels.rows)
            state = replace(state, labels=span_state(version.labels, gram, training, device))
        committed = cls(
            features=features,
            labels=labels,
            state=state,
            live_graph=live_graph,
            training_rows=TrainingRows.of(live_graph),
            node_ids=graph.node_ids.without(np.flatnonzero(~live)),
            public=base.public,
            injected=carried_columns(graph.features, manifest.injected_columns),
            regularization=manifest.spec.regularization,
            sweep_columns=max(manifest.spec.hops, manifest.spec.label_hops) * graph.num_classes,
            publication=version.publication,
            _checkpointed=number if kept else None,
        )
        if stale_coefficients and edited:
            committed._complete(edited)
        elif stale_coefficients:
            objective = committed.objective
            _, coefficients = at_optimum(state, objective, objective.at(stacked(state)))
            committed.features, committed.labels = committed.inputs(coefficients)
        return committed

    @property
    def from_checkpoint(self) -> bool:
        """Whether the Gram factors came from a checkpoint."""
        return self._checkpointed == self.state.version

    @property
    def certificate(self) -> Certificate | None:
        """The bound on the distance to the retrained weights; None for a loss without certificate."""
        if self._certificate is None:
            self._certificate = self.held(None).certificate()
        return self._certificate

    @property
    def has_certificate(self) -> bool:
        """Whether `certificate` needs no sweeps over the graph."""
        return self._certificate is not None or not certifiable(self.live_graph.loss, self.regularization)

    @property
    def bound_columns(self) -> int:
        """Product columns that `certificate` takes.

        One sweep for the logits, one for the gradient, and a column of each input in each direction for rounding.
        """
        return 2 * (self.sweep_columns + sum(each.operators.block_hops[-1] for each in self.live_graph.inputs))

    @property
    def objective(self) -> Objective:
        """F^u, the objective of the live graph."""
        return self.live_graph.objective(self.regularization)

    @property
    def free_bytes(self) -> int | None:
        """Free memory on the device in bytes; None if unknown."""
        return available_bytes(self.features.rows.device)

    def predictions(self) -> Snapshot:
        """Return this version's predictions as published."""
        snapshot = snapshot_of(self.published_state, self.live_graph)
        self.drift = snapshot.drift
        return snapshot

    @property
    def published_state(self) -> ModelState:
        """The state that predictions come from: with the noise of the publication, if any."""
        return self.state if self.publication is None else shown(self.publication, self.state, None)

    def coefficients(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the span coefficients without the part in T: features (blocks, n, C), labels (label_hops, n, C)."""
        beta = on_host(self.features.beta).numpy()
        if self.labels is None:
            return beta, np.zeros((0, *beta.shape[1:]))
        return beta, on_host(self.labels.beta).numpy()

    def inputs(self, coefficients: Sequence[Tensor] | None) -> tuple[InputRows, InputRows | None]:
        """Return the rows of features and labels with these coefficients; None keeps the present ones."""
        if coefficients is None:
            return self.features, self.labels
        labels = None if self.labels is None else replace(self.labels, beta=coefficients[1])
        return replace(self.features, beta=coefficients[0]), labels

    def held(self, preconditioner: Preconditioner | None) -> HeldModel:
        """Return everything that computing a deletion needs."""
        return HeldModel(
            self.state, self.features, self.labels, self.live_graph, self.regularization, self.training_rows,
            self.injected, preconditioner,
        )  # fmt: skip

    def share(self, workers: Workers) -> None:
        """Compute together with `workers` from now on; each of them has built the same graph."""
        self.live_graph = self.live_graph.shared_by(workers)
        self.training_rows = TrainingRows.of(self.live_graph)

    def forget(self, prepared: Prepared) -> None:
        """Commit a batch: clear the rows that it removed from memory, and take over those that joined."""
        rows, edit = self.features.rows, prepared.edit
        self.live_graph = prepared.live_graph
        self.training_rows = prepared.training_rows
        self.training_rows.forget()
        gone = np.concatenate([prepared.nodes, prepared.feature_rows])
        joined = np.empty(0, dtype=np.int64) if edit is None else edit.feature_rows
        self.live_graph.forget(prepared.nodes, np.setdiff1d(prepared.feature_rows, joined))
        if self.live_graph.inputs.features.rows is not rows:
            # The rows that were replaced are in the old matrix alone.
            rows.forget(gone)
        _overwrite(self.features.beta, gone)
        if self.labels is not None:
            _overwrite(self.labels.beta, np.concatenate([prepared.nodes, prepared.label_rows]))
        self.node_ids.forget(prepared.nodes)
        if edit is not None:
            self._take_over(edit, prepared.joined)
        self.replace(prepared)

    def _complete(self, edited: Sequence[EditedRows]) -> None:
        """Make the coefficients, which are those of an earlier version, those of this one, which are `edited`."""
        given = [(self.features, self.state.features.in_span)]
        if self.labels is not None:
            given.append((self.labels, self.state.live))
        for (one, in_span), rows in zip(given, edited, strict=False):
            _overwrite(one.beta, np.flatnonzero(~in_span))
            one.beta[:, torch.from_numpy(rows.rows).to(one.beta.device)] = on_device(rows.beta, one.beta.device)

    def _take_over(self, edit: Edit, joined: Sequence[JoinedRows]) -> None:
        inputs, nodes = self.live_graph.inputs, edit.nodes
        given = [self.features] if self.labels is None else [self.features, self.labels]
        betas = [one.beta for one in given]
        if joined:
            betas = [rows.into(beta, nodes) for rows, beta in zip(joined, betas, strict=True)]
        found = [InputRows(each.rows, beta) for each, beta in zip(inputs, betas, strict=True)]
        self.features, self.labels = found[0], found[1] if self.labels is not None else None
        if len(edit.ids):
            self.node_ids = self.node_ids.followed_by(edit.ids)
            self.public = np.concatenate([self.public, np.zeros(len(edit.ids), dtype=np.bool_)])
        if edit.features is not None and self.injected:
            columns = [each.column for each in self.injected]
            self.injected = [
                replace(old, carriers=np.union1d(old.carriers[~np.isin(old.carriers, edit.feature_rows)], new))
                for old, new in zip(
                    self.injected,
                    (edit.feature_rows[each.carriers] for each in carried_columns(edit.features, columns)),
                    strict=True,
                )
            ]

    def replace(self, made: Prepared | PreparedRepair) -> None:
        """Commit the state of `made`, on the unchanged graph."""
        self.state, self.publication, self.drift = made.state, made.publication, made.snapshot.drift
        self._certificate = made.outcome.after
        self.features, self.labels = self.inputs(made.outcome.coefficients)


def _overwrite(beta: torch.Tensor, rows: NDArray[np.int64]) -> None:
    beta[:, torch.from_numpy(rows).to(beta.device)] = 0.0
