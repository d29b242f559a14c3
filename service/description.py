"""The served model in figures, from its manifest, its state on the device and the database."""

from collections.abc import Awaitable, Callable

from model_store.manifest import Manifest
from projector.forgetting.status import RepairStatus
from service.api.services import ModelInfo
from service.db.engine import Engine
from service.db.pointers import PointerRepository
from service.db.transactions import transaction
from service.db.versions import VersionRepository
from service.domain.states import Guarantee
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
            # Two, because the newest may not have been measured yet.
            made = await VersionRepository(connection).latest(name, limit=2)
        manifest, model = served(), resident()
        if pointer is None or model is None:
            raise Unavailable("The model is still being loaded.", "Try again in a moment; /readyz says when it is.")
        repair = made[0].repair if made else RepairStatus.NONE
        live, certificate = model.committed.live_graph.propagator, model.committed.certificate
        return ModelInfo(
            name=manifest.name,
            version=pointer.version,
            nodes=manifest.nodes,
            live_nodes=int(live.live.sum()),
            edges=model.committed.live_graph.edges,
            features=manifest.features,
            classes=manifest.classes,
            hops=manifest.spec.hops,
            combine=manifest.spec.combine.value,
            propagation=manifest.spec.propagation.value,
            loss=manifest.spec.loss.value,
            regularization=manifest.spec.regularization,
            rank=model.committed.state.features.gram.rank,
            condition_number=manifest.condition_number,
            span_residual=next((one.span_residual for one in made if one.span_residual is not None), None),
            distance_bound=None if certificate is None else certificate.bound,
            distance_bound_relative=None if certificate is None else certificate.relative,
            repair=repair,
            repair_progress=model.repairing if repair is RepairStatus.PENDING else None,
            guarantee=Guarantee.RETRAINED if repair is RepairStatus.CONVERGED else Guarantee.SPAN,
            device=str(live.device),
            weights_sha256=pointer.weights_sha256,
        )

    return describe
