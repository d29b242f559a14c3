"""The served model in figures, from its manifest, its state on the device and the database."""

from collections.abc import Awaitable, Callable

from model_store.manifest import Manifest
from service.api.services import ModelInfo
from service.db.batches import BatchRepository
from service.db.engine import Engine
from service.db.imports import ImportRepository
from service.db.pointers import PointerRepository
from service.db.transactions import transaction
from service.domain.states import Guarantee, RepairStatus
from service.errors import Unavailable
from service.unlearning.resident import Resident


def model_description(
    engine: Engine, served: Callable[[], Manifest], resident: Callable[[], Resident | None]
) -> Callable[[], Awaitable[ModelInfo]]:
    """A function that describes the committed version; it raises Unavailable while no model is loaded."""

    async def describe() -> ModelInfo:
        name = served().name
        async with transaction(engine) as connection:
            pointer = await PointerRepository(connection).read(name)
            batch = await BatchRepository(connection).latest(name)
            latest = await ImportRepository(connection).latest(name)
        imported = None if latest is None else latest.imported
        if batch is not None and imported is not None and imported.version_after > batch.model_version_after:
            batch = None
        elif batch is not None:
            imported = None
        measured = batch or imported
        manifest, model = served(), resident()
        if pointer is None or model is None:
            raise Unavailable("The model is still being loaded.", "Try again in a moment; /readyz says when it is.")
        live = model.live_graph.propagator
        return ModelInfo(
            name=manifest.name,
            version=pointer.version,
            nodes=manifest.nodes,
            live_nodes=int(live.live.sum()),
            edges=int(live.neighbours.sum()) // 2,
            features=manifest.features,
            classes=manifest.classes,
            hops=manifest.spec.hops,
            combine=manifest.spec.combine.value,
            propagation=manifest.spec.propagation.value,
            loss=manifest.spec.loss.value,
            regularization=manifest.spec.regularization,
            rank=model.state.features.gram.rank,
            condition_number=manifest.condition_number,
            span_residual=None if measured is None else measured.span_residual,
            distance_bound_relative=None if batch is None else batch.distance_bound_after_relative,
            # Nothing is repaired yet, so of the weights after a deletion the paper's guarantee is what holds.
            repair=RepairStatus.NONE,
            guarantee=Guarantee.SPAN,
            device=str(live.device),
            weights_sha256=pointer.weights_sha256,
        )

    return describe
