"""What is told of a model besides its predictions, from what the unlearner holds of it."""

from model_store.manifest import Manifest
from service.publication.facts import ModelFacts, VersionFacts
from service.unlearning.resident import Resident


def model_facts(manifest: Manifest) -> ModelFacts:
    """What stays the same from one import to the next."""
    spec = manifest.spec
    return ModelFacts(
        name=manifest.name,
        nodes=manifest.nodes,
        features=manifest.features,
        classes=manifest.classes,
        hops=spec.hops,
        combine=spec.combine.value,
        propagation=spec.propagation.value,
        loss=spec.loss.value,
        regularization=spec.regularization,
        condition_number=manifest.condition_number,
    )


def served_facts(resident: Resident) -> VersionFacts:
    """Those of the committed version; its certificate is computed if it is not known."""
    live, certificate = resident.live_graph.propagator, resident.certificate
    return VersionFacts(
        version=resident.state.version,
        live_nodes=int(live.live.sum()),
        edges=resident.live_graph.edges,
        rank=resident.state.features.gram.rank,
        distance_bound=None if certificate is None else certificate.bound,
        distance_bound_relative=None if certificate is None else certificate.relative,
        device=str(live.device),
    )
