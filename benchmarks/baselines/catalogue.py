"""Every baseline under its name in the experiments."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from benchmarks.baselines.field.differentiable import Backbone, Forgetting, Method
from benchmarks.baselines.field.gif import InfluenceFunction
from benchmarks.baselines.field.gnndelete import GnnDelete
from benchmarks.baselines.field.megu import Megu
from benchmarks.baselines.graph_eraser import Aggregator, GraphEraser
from benchmarks.baselines.lethe import Lethe, RetrainedWithDiffusion
from benchmarks.baselines.newton.certified_removal import CertifiedRemoval
from benchmarks.baselines.newton.deltagrad import DeltaGrad
from benchmarks.baselines.newton.fisher import Fisher
from benchmarks.baselines.newton.influence import Affected, Influence
from benchmarks.baselines.newton.scalegun import scalegun
from benchmarks.baselines.nonlinear import Kind, Network
from benchmarks.baselines.partition import Partition, at_random, bekm, blpa, metis
from benchmarks.baselines.printed import Printed, PrintedProjector
from benchmarks.baselines.projective_residual import ProjectiveResidual
from benchmarks.baselines.protocol import Baseline
from benchmarks.baselines.retraining import Retraining
from benchmarks.baselines.ridge import ClosedFormSgc, Editing, GraphEditor
from benchmarks.baselines.saint import SampledNetwork
from projector import ModelSpec
from projector.network.spec import LossKind

#: Standard deviation of the noise of the methods that publish one (Chien et al.: 0.1, at their lambda of 1e-2), and of
#: the others, which publish none. Its effect on the weights is divided by lambda: at 1e-4, a hundred times as much.
_NOISE = 0.1
#: For Fisher+, whose noise is divided by the fourth root of lambda: 10 times at 1e-4.
_FISHER_NOISE = 0.01
_PARTITIONS: Mapping[str, Partition] = {"bekm": bekm, "blpa": blpa, "metis": metis}

#: Retrained references for the methods with the squared loss, each with its own targets and ridge.
SQUARED_RETRAINING, EDITOR_RETRAINING = "retraining, squared loss", "graph editor, solved again"
#: The same for gradient descent that stops before the optimum.
DESCENT_RETRAINING = "deltagrad, descent again"
Build = Callable[[ModelSpec, int], Baseline]


def _eraser(network: Kind | None, partition: Partition, aggregator: Aggregator) -> Build:
    def build(spec: ModelSpec, seed: int) -> Baseline:
        trainer = Retraining(spec) if network is None else Network(network, seed)
        return GraphEraser(trainer, partition, aggregator, seed=seed)

    return build


def _network(kind: Kind) -> Build:
    return lambda spec, seed: Network(kind, seed)


def _squared(spec: ModelSpec) -> ModelSpec:
    return replace(spec, loss=LossKind.SQUARED)


def is_squared(method: str) -> bool:
    """Whether a method uses the squared loss, regardless of the specification."""
    return method.endswith("squared loss") or method.startswith(("closed-form sgc", "graph editor", "projective"))


#: Builders of each method, from a specification with the loss `ovr` and a seed.
METHODS: dict[str, Build] = {
    "retraining": lambda spec, seed: Retraining(spec),
    "lethe, projection": lambda spec, seed: Lethe(spec, repair=False),
    "lethe, projection and repair": lambda spec, seed: Lethe(spec, repair=True),
    "lethe, projection, with diffusion": lambda spec, seed: Lethe(replace(spec, diffusion=True), repair=False),
    "retraining, with diffusion": lambda spec, seed: RetrainedWithDiffusion(replace(spec, diffusion=True)),
    "projector, option 1 as printed": lambda spec, seed: PrintedProjector(spec, Printed.OPTION_1),
    "projector, option 2 as printed": lambda spec, seed: PrintedProjector(spec, Printed.OPTION_2),
    "projector, official code": lambda spec, seed: PrintedProjector(spec, Printed.OFFICIAL),
    "influence, without noise": lambda spec, seed: Influence(spec, Affected.DELETED, seed=seed),
    "influence": lambda spec, seed: Influence(spec, Affected.DELETED, _NOISE, seed),
    "influence+": lambda spec, seed: Influence(spec, Affected.REPLACED, _NOISE, seed),
    "influence+, authors' code": lambda spec, seed: Influence(spec, Affected.REMOVED, seed=seed),
    "fisher+": lambda spec, seed: Fisher(spec, _FISHER_NOISE, seed),
    "fisher+, without noise": lambda spec, seed: Fisher(spec),
    "certified removal": lambda spec, seed: CertifiedRemoval(spec, _NOISE, seed=seed),
    "scalegun": lambda spec, seed: scalegun(spec, _NOISE, seed=seed),
    SQUARED_RETRAINING: lambda spec, seed: Retraining(_squared(spec)),
    "lethe, projection and repair, squared loss": lambda spec, seed: Lethe(_squared(spec), repair=True),
    "closed-form sgc": lambda spec, seed: ClosedFormSgc(_squared(spec)),
    EDITOR_RETRAINING: lambda spec, seed: GraphEditor(_squared(spec), Editing.RETRAINED),
    "graph editor": lambda spec, seed: GraphEditor(_squared(spec), Editing.CLOSED_FORM),
    "graph editor, fine-tuned": lambda spec, seed: GraphEditor(_squared(spec), Editing.FINE_TUNED),
    **{
        f"graph eraser, {network or 'linear'}, {name}, {aggregator}": _eraser(network, partition, aggregator)
        for network in (None, Kind.GCN, Kind.SAGE, Kind.GAT)
        for name, partition in _PARTITIONS.items()
        for aggregator in (Aggregator.MEAN, Aggregator.LEARNED)
    },
    "projective residual": lambda spec, seed: ProjectiveResidual(_squared(spec)),
    DESCENT_RETRAINING: lambda spec, seed: DeltaGrad(spec, again=True),
    "deltagrad": lambda spec, seed: DeltaGrad(spec),
    "sisa": _eraser(None, at_random, Aggregator.VOTE),
    # Table 2 combines GraphSAINT with erasers; one of them is enough.
    "graph eraser, gcn graphsaint, metis, mean": lambda spec, seed: GraphEraser(
        SampledNetwork(Kind.GCN, seed), metis, Aggregator.MEAN, seed=seed
    ),
    **{str(kind): _network(kind) for kind in Kind},
    "gcn, graphsaint": lambda spec, seed: SampledNetwork(Kind.GCN, seed),
}
#: Noise of IDEA in its authors' code, for GCN and SGC on Cora and Citeseer.
IDEA_NOISE = 0.6
_FIELD: Mapping[str, Callable[[int], Method]] = {
    "gif": lambda seed: InfluenceFunction(),
    "idea": lambda seed: InfluenceFunction(noise=IDEA_NOISE, seed=seed),
    "megu": Megu,
    "gnndelete": GnnDelete,
}


def _forgetting(make: Callable[[int], Method], network: bool) -> Build:
    return lambda spec, seed: Forgetting(Backbone(spec, seed if network else None), make(seed))


#: Methods of other papers than Projector's, for any network: of the linear model and of a GCN, with the softmax.
FIELD: dict[str, Build] = {
    f"{name}, {kind}": _forgetting(make, kind == "gcn") for kind in ("linear", "gcn") for name, make in _FIELD.items()
}
#: Methods that are not linear in the features, without erasers.
NETWORKS = (*map(str, Kind), "gcn, graphsaint")


def build(method: str, spec: ModelSpec, seed: int, regularization: float) -> Baseline:
    """Build the named method from `spec`, with lambda `regularization`."""
    return (METHODS | FIELD)[method](replace(spec, regularization=regularization), seed)
