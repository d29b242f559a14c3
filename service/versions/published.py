"""What is published of a model and its versions, from what the unlearner holds of them."""

from dataclasses import asdict

from model_store.manifest import Manifest
from projector.certified.publication import Publication
from projector.forgetting.batch import ModelState
from projector.forgetting.certificate import Certificate
from service.publication.facts import ModelFacts, NoiseFacts, VersionFacts
from service.publication.writer import PublishedModel
from service.unlearning.committed import Committed
from service.versions.told import Told


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
        accuracy=None if manifest.regression is not None else asdict(manifest.accuracy),
        regression=None if manifest.regression is None else asdict(manifest.regression),
    )


def published_model(manifest: Manifest, committed: Committed) -> PublishedModel:
    """What all versions of a model have in common."""
    return PublishedModel(model_facts(manifest), manifest.canaries, committed.node_ids, committed.public)


def committed_facts(committed: Committed, told: Told) -> VersionFacts:
    """Those of the committed version; its certificate is computed if it is not known."""
    edges, certificate = committed.live_graph.edges, committed.certificate
    return version_facts(committed.state, edges, certificate, committed.publication, told)


def version_facts(
    state: ModelState, edges: int, certificate: Certificate | None, publication: Publication | None, told: Told
) -> VersionFacts:
    """Those of a version of which `certificate` bounds the distance to retraining; one with noise was counted."""
    shown = None if publication else certificate
    return VersionFacts(
        version=state.version,
        live_nodes=int(state.live.sum()),
        edges=edges,
        rank=state.features.gram.rank,
        distance_bound=None if shown is None else shown.bound,
        distance_bound_relative=None if shown is None else shown.relative,
        device=str(state.features.W.device),
        noise=None if publication is None else _noise_facts(publication, told),
    )


def _noise_facts(publication: Publication, told: Told) -> NoiseFacts:
    promise, spent = publication.promise, told.standing(publication)
    return NoiseFacts(
        epsilon=promise.epsilon,
        delta=promise.delta,
        planned=promise.publications,
        used=spent.share * promise.publications,
        mu=publication.mechanism.mu,
        sigma=publication.mechanism.sigma,
    )
