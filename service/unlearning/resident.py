"""The model resident on the device: the arrays that stay, and the committed state that each batch replaces."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model_store.base_store import Base
from model_store.manifest import Manifest
from model_store.memory import available_bytes
from model_store.versions import VersionState
from projector.forgetting.batch import (
    InjectedColumn,
    InputRows,
    ModelState,
    Removal,
    carried_columns,
)
from projector.forgetting.canaries import Canaries
from projector.forgetting.certificate import Certificate
from projector.forgetting.forget import HeldModel, RepairPlan, forget, require_finite
from projector.forgetting.gram import Gram
from projector.forgetting.live_graph import LiveGraph
from projector.forgetting.optimum import Coefficients, at_optimum, stacked
from projector.forgetting.preconditioner import Preconditioner
from projector.forgetting.repair import Minimiser, Repair, RepairOutcome, newton
from projector.forgetting.status import RepairProgress, RepairStatus
from projector.forgetting.training_rows import TrainingRows
from projector.network.blocks import by_block, side_by_side
from projector.network.representation import Representation
from projector.solvers.class_blocks import ClassBlocks, HessianFactor, preconditioner_steps, why_no_blocks
from projector.solvers.objective import Objective
from service.domain.states import RepairPolicy
from service.unlearning.loading import load, on_device
from service.unlearning.newton_process import NewtonProcess, pays
from service.unlearning.placement import Placement, require_repairable
from service.unlearning.prepared import Prepared, PreparedRepair, finite
from service.unlearning.snapshot import Snapshot


class Resident:
    """One model on one device. `prepare` changes nothing; `commit` makes what was prepared the committed state.

    Under the policy `always` a batch is repaired while it is prepared, for as long as its budget lasts; a repair that
    takes longer goes on with `advance_repair` after the weights reached were committed. A batch that comes in between
    goes on from the weights reached by then, so that a stream of deletions converges on the way.

    In idle time `advance_upkeep` makes blocks of the Hessian at the committed weights, which make the next repair fast.
    Blocks that predate a deletion stay for at most `factor_age_s`; all else that was computed with rows that a batch
    deletes leaves the memory when the batch is committed.
    """

    def __init__(
        self,
        features: InputRows,
        labels: InputRows | None,
        state: ModelState,
        live_graph: LiveGraph,
        rows: dict[str, int],
        public: frozenset[str],
        canaries: Canaries | None,
        injected: Sequence[InjectedColumn],
        regularization: float,
        placement: Placement,
    ) -> None:
        self.features = features
        self.labels = labels
        self.state = state
        self.live_graph = live_graph
        #: External id -> row, live nodes only.
        self.rows = rows
        #: External ids of the nodes declared public: an MLP was trained on them, and they are never deleted.
        self.public = public
        #: None for a model trained without.
        self.canaries = canaries
        self._injected = tuple(injected)
        #: lambda.
        self.regularization = regularization
        self._policy = placement.policy
        self._process: NewtonProcess | None = None
        #: The version whose Gram factors were read from a checkpoint.
        self._checkpointed: int | None = None
        self._training_rows = TrainingRows(live_graph)
        self._repair_tolerance = placement.repair_tolerance
        #: Seconds for which blocks of the Hessian may be kept after the first deletion that they predate.
        self.factor_age_s = placement.factor_age_s
        self._preconditioner: Preconditioner | None = None
        self._making: Iterator[ClassBlocks | HessianFactor | None] | None = None
        self._pending: Repair | None = None
        #: Why no blocks are made for this version, once that was asked.
        self._no_blocks: str | None = None
        self._judged = False
        self._certificate: Certificate | None = None

    @classmethod
    def load(
        cls,
        manifest: Manifest,
        base: Base,
        version: VersionState,
        number: int,
        placement: Placement,
        *,
        stale_coefficients: bool = False,
        gram: Gram | None = None,
    ) -> "Resident":
        """Puts version `number` of a stored model on the device and factorises its Gram matrices.

        `gram` are the factors of the features as a checkpoint of that very version kept them. They are used when they
        fit the rows; otherwise, and for None, they are computed from the rows.
        With `stale_coefficients` those in `base` are of an earlier version; they are rebuilt from the weights, which
        must be an optimum. Raises RepairImpossible for a policy that the model does not allow and, both before any
        work, DeviceError when the device has less free memory than that and later batches need.
        """
        if placement.policy is RepairPolicy.ALWAYS:
            require_repairable(manifest.spec)
        loaded = load(manifest, base, version, number, placement.device, gram)
        graph = base.graph
        resident = cls(
            features=loaded.features,
            labels=loaded.labels,
            state=loaded.state,
            live_graph=loaded.live_graph,
            rows={graph.node_ids[row]: int(row) for row in np.flatnonzero(version.live)},
            public=frozenset(graph.node_ids[row] for row in np.flatnonzero(base.public)),
            canaries=manifest.canaries,
            injected=carried_columns(graph.features, manifest.injected_columns),
            regularization=manifest.spec.regularization,
            placement=placement,
        )
        resident._checkpointed = number if loaded.from_checkpoint else None
        if stale_coefficients:
            objective = resident._objective(resident.live_graph)
            _, coefficients = at_optimum(loaded.state, objective, objective.at(stacked(loaded.state)))
            resident.features, resident.labels = resident._given(coefficients)
        resident.leave_repairs_to(placement.process)
        return resident

    @property
    def from_checkpoint(self) -> bool:
        """Whether the Gram factors of the committed state were read from a checkpoint instead of computed."""
        return self._checkpointed == self.state.version

    def predictions(self) -> Snapshot:
        """The predictions of the committed state."""
        return _snapshot(self.state, self.live_graph)

    @property
    def certificate(self) -> Certificate | None:
        """How far the committed weights can be from those of retraining; None for a loss without certificate."""
        if self._certificate is None:
            self._certificate = self._held().certificate()
        return self._certificate

    def coefficients(self) -> Coefficients:
        """The span coefficients of the committed state as they are stored, without the part that T holds."""
        classes = self.state.classes
        beta = by_block(self.features.beta, classes).cpu().numpy()
        if self.labels is None:
            return Coefficients(beta, np.zeros((0, beta.shape[1], classes)))
        return Coefficients(beta, by_block(self.labels.beta, classes).cpu().numpy())

    def prepare(self, removals: Sequence[Removal], *, budget_s: float = math.inf) -> Prepared:
        """Computes all removals at once, beside the committed state, and repairs for at most `budget_s` seconds.

        Raises NotFinite when the result is not made of finite numbers.
        """
        plan = None
        if self._policy is RepairPolicy.ALWAYS:
            plan = RepairPlan(
                budget_s, *self._means(), factor_age_s=self.factor_age_s, tolerance=self._repair_tolerance
            )
        forgotten = forget(self._reached(), removals, plan)
        # The record speaks of what was committed before, also where the batch goes on from what a repair has reached.
        projection = forgotten.projection.with_weights_of(forgotten.state, self.state)
        forgotten = replace(forgotten, projection=projection)
        snapshot = finite(forgotten.state, _snapshot(forgotten.state, forgotten.live_graph, forgotten.logits))
        return Prepared(**vars(forgotten), snapshot=snapshot)

    def commit(self, prepared: Prepared) -> None:
        """Makes `prepared` the committed state and forgets the removed rows in memory, with all computed from them."""
        self.state = prepared.state
        self.live_graph = prepared.live_graph
        self._training_rows = prepared.training_rows
        self._training_rows.forget()
        _forget(self.features, np.concatenate([prepared.nodes, prepared.feature_rows]))
        if self.labels is not None:
            _forget(self.labels, prepared.nodes)
        deleted = set(prepared.nodes.tolist())
        self.rows = {node: row for node, row in self.rows.items() if row not in deleted}
        self._settle(prepared.repair, prepared.outcome)
        if prepared.outcome.status is RepairStatus.PENDING:
            self._pending = prepared.repair

    def begin_repair(self) -> None:
        """Starts a repair of the committed state, for `advance_repair` to carry out."""
        objective = self._objective(self.live_graph)
        minimiser, free = self._means()
        self._pending = Repair(
            self.state, objective, self._training_rows, self._usable(),
            minimiser=minimiser, free=free, tolerance=self._repair_tolerance,
        )  # fmt: skip

    @property
    def repairing(self) -> RepairProgress | None:
        """How far the repair of the committed state has come; None when none is under way."""
        # Asked for by other threads as well, while a batch ends it.
        pending = self._pending
        return None if pending is None else pending.progress

    def advance_repair(self, until: float) -> PreparedRepair | None:
        """Goes on with the repair of the committed state until `time.monotonic()` reaches `until`.

        Returns the version that would follow once it is finished, None before. Raises NotFinite when it is not made of
        finite numbers, and RuntimeError when no repair is under way.
        """
        if self._pending is None:
            raise RuntimeError("no repair is under way")
        if not self._pending.advance(until):
            return None
        state, outcome = self._pending.repaired()
        state = replace(state, version=self.state.version + 1)
        require_finite(state)
        snapshot = finite(state, _snapshot(state, self.live_graph))
        return PreparedRepair(state, outcome, snapshot, self._pending)

    def commit_repair(self, prepared: PreparedRepair) -> None:
        """Makes a finished repair the committed state."""
        self.state = prepared.state
        self._settle(prepared.repair, prepared.outcome)

    @property
    def upkeep_due(self) -> bool:
        """Whether `advance_upkeep` has something to do; blocks that may not stay any longer leave the memory."""
        usable = self._usable()
        if self._policy is RepairPolicy.NEVER or self._pending is not None or (usable is not None and usable.fresh):
            return False
        return self._making is not None or self.why_no_blocks is None

    @property
    def why_no_blocks(self) -> str | None:
        """Why no blocks of the Hessian of this version are made, and repairs go without; None if they are."""
        if not self._judged:
            free = available_bytes(self.features.rows.device)
            free = None if free is None else free + self._training_rows.held_bytes
            whole = self.live_graph.factorises
            self._no_blocks = why_no_blocks(self._representation(), self.state.classes, whole, free)
            self._judged = True
        return self._no_blocks

    @property
    def preconditioner(self) -> Preconditioner | None:
        """The blocks of the Hessian that the next repair would begin with; None while there are none."""
        return self._usable()

    def advance_upkeep(self, until: float) -> None:
        """Makes blocks of the Hessian at the committed weights, until `time.monotonic()` reaches `until`.

        When that fails, it is not tried again on this version.
        """
        if self._making is None:
            self._making = self._blocks()
        try:
            while self._making is not None and time.monotonic() < until:
                blocks = next(self._making)
                if blocks is not None:
                    self._preconditioner, self._making = Preconditioner(blocks), None
        except Exception as error:
            self._making = None
            self._no_blocks, self._judged = f"they could not be made: {error}", True
            raise

    def _blocks(self) -> Iterator[ClassBlocks | HessianFactor | None]:
        """Blocks made from what remains, in short steps."""
        for _ in self._training_rows.steps():
            yield None
        objective = self._training_rows.objective(self.regularization)
        point = objective.at(stacked(self.state))
        yield from preconditioner_steps(objective, point, self._training_rows.H(), self.live_graph.factorises)

    def _usable(self) -> Preconditioner | None:
        """The blocks; those that may not stay any longer leave the memory."""
        if self._pending is not None:
            self._preconditioner = self._pending.usable()
        if self._preconditioner is not None and self._preconditioner.expired:
            self._preconditioner = None
        return self._preconditioner

    def leave_repairs_to(self, process: NewtonProcess | None) -> None:
        """Has repairs that it pays for computed in `process`, which is started for them: that takes seconds."""
        self._process = process
        if process is None:
            return
        process.forget()
        if self._policy is RepairPolicy.NEVER or self.live_graph.keeps_dense or self.why_no_blocks is None:
            return
        if pays(self._representation(), self.state.classes):
            process.start()

    def _means(self) -> tuple[Minimiser, int | None]:
        """By what repairs go without a factor, and the bytes that one may take."""
        minimiser = newton if self._process is None else self._process.minimisation
        return minimiser, available_bytes(self.features.rows.device)

    def _held(self) -> HeldModel:
        return HeldModel(
            self.state, self.features, self.labels, self.live_graph, self.regularization, self._training_rows,
            self._injected, self._usable(),
        )  # fmt: skip

    def _reached(self) -> HeldModel:
        """What a batch starts from: the committed state, or what its repair has reached since."""
        held = self._held()
        if self._pending is None or not self._pending.improved:
            return held
        state, outcome = self._pending.repaired()
        features, labels = self._given(outcome.coefficients)
        blocks = self._pending.usable()
        return replace(held, state=state, features=features, labels=labels, preconditioner=blocks, is_ahead=True)

    def _representation(self) -> Representation:
        """H through its factors."""
        return Representation(self.live_graph.inputs, self.live_graph.training_rows)

    def _objective(self, live_graph: LiveGraph) -> Objective:
        return live_graph.objective(self.regularization)

    def _settle(self, repair: Repair | None, outcome: RepairOutcome) -> None:
        """Keeps of what was computed what holds of the state just committed."""
        if self._process is not None:
            self._process.forget()
        self._certificate = outcome.after
        if self._pending is not None and self._pending is not repair:
            self._pending.close()
        self._making = self._pending = None
        self._judged = False
        if repair is not None:
            self._preconditioner = repair.committed()
        self.features, self.labels = self._given(outcome.coefficients)

    def _given(self, coefficients: Coefficients | None) -> tuple[InputRows, InputRows | None]:
        """The inputs' rows with these coefficients, or with those they have."""
        features, labels, device = self.features, self.labels, self.features.beta.device
        if coefficients is not None:
            features = replace(features, beta=side_by_side(on_device(coefficients.beta, device)))
            if labels is not None:
                labels = replace(labels, beta=side_by_side(on_device(coefficients.label_beta, device)))
        return features, labels


def _snapshot(state: ModelState, live_graph: LiveGraph, logits: Tensor | None = None) -> Snapshot:
    probabilities = live_graph.probabilities(state, logits)
    return Snapshot(state.version, probabilities, state.live, live_graph.propagator.edges)


def _forget(given: InputRows, rows: NDArray[np.int64]) -> None:
    given.rows.forget(rows)
    given.beta[torch.from_numpy(rows).to(given.beta.device)] = 0.0
