"""The paper's experiments, with their methods, datasets and seeds."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.baselines.catalogue import FIELD, METHODS, NETWORKS
from benchmarks.paper.accuracies import SHADOW, VARIANTS, WALKS, accuracies
from benchmarks.paper.forgetting.batches import batches
from benchmarks.paper.forgetting.closeness import closeness
from benchmarks.paper.forgetting.dual_unlearning import METHOD as DUAL
from benchmarks.paper.forgetting.dual_unlearning import dual_unlearning
from benchmarks.paper.forgetting.early import FISHER, INFLUENCE, LIVE, PAPERS, RETRAINING, STARTED, at, early
from benchmarks.paper.forgetting.field import field
from benchmarks.paper.forgetting.identity import AS_PRINTED, identity
from benchmarks.paper.forgetting.injection import injection, regularization
from benchmarks.paper.forgetting.robustness import degrees, robustness
from benchmarks.paper.forgetting.sequential import sequential
from benchmarks.paper.forgetting.stream import stream
from benchmarks.paper.forgetting.svm import svm
from benchmarks.paper.forgetting.two_losses import METHOD as AUTHORS_COMPARISON
from benchmarks.paper.forgetting.two_losses import two_losses
from benchmarks.paper.inference.edges import edges
from benchmarks.paper.inference.identification import identification
from benchmarks.paper.inference.lira import lira
from benchmarks.paper.inference.membership import early_membership, membership
from benchmarks.paper.inference.reconstruction import reconstruction
from benchmarks.paper.inference.versions import PLANTED
from benchmarks.paper.label_inputs import ALL_LABELS, LABEL_INPUTS, SECOND_PASS
from benchmarks.paper.losses import LOSSES, losses
from benchmarks.paper.setting import (
    ARXIV,
    CERTIFIED,
    CORA_ALONE,
    PLAIN_HINGE,
    SMALL,
    SMOOTHED_HINGE,
    SOFTMAX,
    Experiment,
    is_network,
)
from benchmarks.paper.theory.delta import SCALINGS, delta
from benchmarks.paper.theory.dependency import dependency
from benchmarks.paper.theory.duals import duals
from benchmarks.paper.theory.expressiveness import LOOPS, expressiveness
from benchmarks.paper.theory.fine_tuning import DIFFUSED, PLAIN, fine_tuning
from benchmarks.paper.theory.theorem import theorem
from benchmarks.paper.units import Unit
from projector.network.spec import LossKind

_LINEAR = tuple(name for name in METHODS if not is_network(name))
#: A retrained network is its own reference, so it is left out. One eraser for each network is enough.
_CLOSE = (*_LINEAR, *(f"graph eraser, {network}, metis, mean" for network in ("gcn", "sage", "gat")))
#: Erasers differ by network, partition and aggregator. One of them shows whether the machinery works.
_FEW = (*(name for name in _LINEAR if "eraser" not in name), "graph eraser, linear, metis, mean")
_PROJECTED = ("lethe, projection", "lethe, projection and repair")
#: The projection beside retrained models.
_RETRAINED = ("retraining", "lethe, projection", *NETWORKS)
#: Figure 4 also has the linear model with diffusion.
_DIFFUSED = ("lethe, projection, with diffusion", "retraining, with diffusion")
#: One of each kind of method that prefers another lambda.
_TUNED = ("retraining", "lethe, projection", "influence+", "fisher+", "graph eraser, linear, metis, mean")
#: Ridge regressions updated in closed form.
_CLOSED_FORMS = ("closed-form sgc", "graph editor")
#: Methods of the headline: exact, as printed, and approximate ones of every kind.
_COMPARED = (
    "retraining",
    *_PROJECTED,
    "graph editor",
    "closed-form sgc",
    "projector, option 1 as printed",
    "influence+",
    "influence+, authors' code",
    "fisher+, without noise",
    "graph eraser, linear, metis, mean",
    *CORA_ALONE,
)
#: Methods under attack, with their losses. Newton steps are defined for `ovr` alone.
_EITHER_LOSS = ("retraining", *_PROJECTED, PLANTED, "projector, option 1 as printed")
_ATTACKED = (
    *_EITHER_LOSS,
    "influence+",
    "fisher+",
    "fisher+, without noise",
    "graph eraser, linear, metis, mean",
    *_CLOSED_FORMS,
    "graph editor, fine-tuned",
    *(name + SOFTMAX for name in _EITHER_LOSS),
)
_FORGETTING_EDGES = tuple(name + loss for loss in ("", SOFTMAX) for name in ("retraining", *_PROJECTED))
_QUICK_ATTACKED = ("lethe, projection and repair", PLANTED, "graph eraser, linear, metis, mean", PLANTED + SOFTMAX)
#: Graphs whose deleted edges are looked for.
_EDGE_GRAPHS = ("cora", "pubmed", ARXIV)
#: Identified and reconstructed on Citeseer and Amazon Photo, beside a planted leak.
_EXACT = ("retraining", "lethe, projection and repair", *_CLOSED_FORMS)
#: The headline's methods, attacked by U-LiRA on every graph.
_SHADOWED_EVERYWHERE = (*_EXACT, "projector, option 1 as printed", "fisher+, without noise")
#: Planned seeds for experiments that draw something, within `LIMITS`.
SEEDS = 5
_LARGE = ("amazon_photo", "coauthor_cs", ARXIV)
#: Attacks with shadow models use confidences, of either loss in one unit.
_SHADOWED = (
    "retraining",
    *_PROJECTED,
    "projector, option 1 as printed",
    "influence+",
    "influence+, authors' code",
    "fisher+",
    "fisher+, without noise",
    "graph eraser, linear, metis, mean",
)
#: Methods of the field, each behind what it is compared with.
_LINEAR_FIELD, _GCN_FIELD = (tuple(name for name in FIELD if name.endswith(kind)) for kind in ("linear", "gcn"))
_BESIDE = (
    "retraining",
    *_PROJECTED,
    *_CLOSED_FORMS,
    "projector, option 1 as printed",
    *_LINEAR_FIELD,
    "gcn",
    *_GCN_FIELD,
)
#: Erasers in the paper's Table 2 for ogbn-arxiv.
_TABLE_2_ERASERS = tuple(f"graph eraser, {network}, metis, mean" for network in ("gcn", "sage"))
EXPERIMENTS: dict[str, Experiment] = {
    "identity": Experiment(identity, ("lethe, projection", AS_PRINTED)),
    "injection": Experiment(
        injection,
        tuple(METHODS),
        quick=(*_FEW, "gcn"),
    ),
    "regularization": Experiment(regularization, _TUNED, SMALL, quick=("retraining", "influence+")),
    "closeness": Experiment(closeness, _CLOSE, quick=(*_FEW, "graph eraser, gcn, metis, mean")),
    "early-stopping": Experiment(
        early,
        tuple(STARTED),
        SMALL[:4],
        quick=(at(RETRAINING, PAPERS), LIVE, at(FISHER, PAPERS), at(INFLUENCE, PAPERS)),
    ),
    "two-losses": Experiment(two_losses, (AUTHORS_COMPARISON,), SMALL[:3]),
    "batches": Experiment(batches, _COMPARED, alone=True),
    "field": Experiment(
        field, _BESIDE, SMALL[:4], quick=("retraining", "graph editor", "megu, linear", "gif, gcn"), alone=True
    ),
    "accuracy": Experiment(
        accuracies,
        (*VARIANTS, *LABEL_INPUTS, SHADOW, *NETWORKS, WALKS, *_TABLE_2_ERASERS),
        quick=("linear", "+ diffusion", ALL_LABELS, SHADOW, "gcn"),
    ),
    "losses": Experiment(losses, LOSSES, quick=(LossKind.SQUARED,)),
    "stream": Experiment(stream, ("certified removal",), ("cora",)),
    "delta": Experiment(delta, tuple(SCALINGS)),
    "dependency": Experiment(dependency, ("all nodes",)),
    "theorem": Experiment(theorem, (PLAIN,), SMALL),
    "fine-tuning": Experiment(fine_tuning, (PLAIN, DIFFUSED)),
    "expressiveness": Experiment(expressiveness, tuple(LOOPS)),
    "duals": Experiment(duals, ("retraining",)),
    "robustness": Experiment(robustness, (*_RETRAINED, *_DIFFUSED), quick=("retraining", "lethe, projection", "gcn")),
    "degrees": Experiment(degrees, _RETRAINED, quick=("lethe, projection",)),
    "membership": Experiment(membership, ("retraining", *_PROJECTED), ("cora", "citeseer"), quick=_PROJECTED[:1]),
    "early-membership": Experiment(early_membership, (at(RETRAINING, PAPERS), LIVE), ("cora", "citeseer")),
    "lira": Experiment(
        lira,
        (*_SHADOWED, *_LINEAR_FIELD, *_CLOSED_FORMS),
        quick=("retraining", _PROJECTED[1], "influence+", "graph editor"),
    ),
    "sequential": Experiment(sequential, _PROJECTED),
    "reconstruction": Experiment(reconstruction, _ATTACKED, quick=_QUICK_ATTACKED),
    "identification": Experiment(identification, _ATTACKED, quick=_QUICK_ATTACKED),
    "edges": Experiment(edges, _FORGETTING_EDGES, _EDGE_GRAPHS),
    "svm": Experiment(svm, (SMOOTHED_HINGE, PLAIN_HINGE), SMALL[:4]),
    "dual-unlearning": Experiment(dual_unlearning, (DUAL,), ("cora",)),
}


@dataclass(frozen=True)
class Limit:
    """Maximum number of seeds for the experiments, datasets and methods that it `holds` for."""

    what: str
    why: str
    holds: Callable[[str, str, str], bool]
    seeds: int = 1


#: Where `plan` uses fewer seeds than requested.
LIMITS = (
    Limit(
        "delta of Assumption 3, expressiveness, affected nodes, and lost directions of training nodes, by many seeds",
        "A seed draws nothing there, except 20,000 nodes whose deletion affects others on the arXiv graph.",
        lambda experiment, _, method: (
            experiment in ("delta", "expressiveness", "dependency")
            or (experiment == "identity" and method == AS_PRINTED)
        ),
    ),
    Limit(
        "the linear model's accuracies without diffusion, MLP or sampler on Cora, Citeseer and Pubmed, by many seeds",
        "A seed draws nothing there: the split is given.",
        lambda experiment, dataset, method: (
            experiment == "accuracy" and dataset in SMALL[:3] and _draws_nothing(method)
        ),
    ),
    Limit(
        "accuracies by loss on Cora, Citeseer, Pubmed and the arXiv graph, by more than one seed",
        "A seed draws nothing there: the split is given.",
        lambda experiment, dataset, _: experiment == "losses" and dataset in (*SMALL[:3], ARXIV),
    ),
    Limit(
        "certified removal and ScaleGUN beyond Cora",
        "They go from one node to the next: Cora's 181 take one to four minutes, Pubmed has 2,733. Citeseer's 272 "
        "would fit and are left for want of time.",
        lambda _, dataset, method: method in CERTIFIED and dataset in (*SMALL[1:], ARXIV),
        seeds=0,
    ),
    Limit(
        "DeltaGrad, the projective residual update and SISA beyond Cora",
        "For want of time. The hat matrix of the projective residual update has a row and a column for each training "
        "node.",
        lambda _, dataset, method: method in CORA_ALONE and dataset in (*SMALL[1:], ARXIV),
        seeds=0,
    ),
    Limit(
        "ScaleGUN by more than one seed",
        "A choice for want of time: with the authors' residues its figures are certified removal's to ten digits.",
        lambda _, __, method: method == "scalegun",
    ),
    Limit(
        "`field` and early stopping on Amazon Photo, by more than one seed",
        "For want of time.",
        lambda experiment, dataset, _: experiment in ("field", "early-stopping") and dataset == "amazon_photo",
    ),
    Limit(
        "networks and their erasers on the arXiv graph, but for accuracies",
        "Three and more networks a unit, which may take 20 minutes; one GCN takes eight there.",
        lambda experiment, dataset, method: dataset == ARXIV and experiment != "accuracy" and is_network(method),
        seeds=0,
    ),
    Limit(
        "accuracies of networks' erasers on graphs other than arXiv",
        "The injection test measures them there.",
        lambda experiment, dataset, method: (
            experiment == "accuracy" and method in _TABLE_2_ERASERS and dataset != ARXIV
        ),
        seeds=0,
    ),
    Limit(
        "networks and their erasers on Amazon Photo and Coauthor CS, by more than one seed",
        "A choice for want of time: one unit takes from seconds to more than its 20 minutes (GAT on Amazon Photo).",
        lambda _, dataset, method: dataset in _LARGE and is_network(method),
    ),
    Limit(
        "GraphSAINT's random walks beyond Cora, Citeseer and Pubmed",
        "For want of time.",
        lambda _, dataset, method: method == WALKS and dataset in _LARGE,
        seeds=0,
    ),
    Limit(
        "accuracies, robustness, degrees, fine-tuning and sequences on the arXiv graph, by more than one seed",
        "A choice for want of time: that graph is for cost, closeness and the injection test.",
        lambda experiment, dataset, _: (
            dataset == ARXIV and experiment in ("accuracy", "robustness", "degrees", "fine-tuning", "sequential")
        ),
    ),
    Limit(
        "networks' erasers but by METIS and means, and all erasers on Coauthor CS and the arXiv graph, by many seeds",
        "A choice for want of time: the others show the spread; here an eraser takes two to seventeen minutes.",
        lambda _, dataset, method: (
            "eraser" in method
            and (dataset in _LARGE[1:] or (is_network(method) and not method.endswith("metis, mean")))
        ),
    ),
    Limit(
        "injection and closeness with diffusion on Amazon Photo, Coauthor CS and the arXiv graph, by many seeds",
        "A choice for want of time: the closeness of one took 14 and 17 minutes on Amazon Photo.",
        lambda experiment, dataset, method: (
            experiment in ("injection", "closeness") and dataset in _LARGE and "with diffusion" in method
        ),
    ),
    Limit(
        "robustness with diffusion beyond Cora, Citeseer and Pubmed",
        "For want of time: a unit of retraining learns six models and their diffusion.",
        lambda experiment, dataset, method: (
            experiment == "robustness" and dataset in _LARGE and "with diffusion" in method
        ),
        seeds=0,
    ),
    Limit(
        "robustness with diffusion on Cora, Citeseer and Pubmed, by more than one seed",
        "For want of time.",
        lambda experiment, _, method: experiment == "robustness" and "with diffusion" in method,
    ),
    Limit(
        "accuracy and fine-tuning with diffusion on Coauthor CS, by many seeds",
        "A choice for want of time: one to six minutes each on Amazon Photo, which has half as many nodes and a "
        "ninth of the features.",
        lambda _, dataset, method: dataset == "coauthor_cs" and "diffusion" in method,
    ),
    Limit(
        "ShaDow's sampler on Coauthor CS and the arXiv graph",
        "On Coauthor CS three draws of 11,000 rows with 27,220 columns take eight gigabytes. On the arXiv graph for "
        "want of time: six minutes for 321,000 draws, before training on 273,000 rows.",
        lambda _, dataset, method: method == SHADOW and dataset in _LARGE[1:],
        seeds=0,
    ),
    Limit(
        "identification and reconstruction on Citeseer and Amazon Photo by other methods than retraining, Lethe with "
        "repair, the planted leak, GraphEditor and closed-form SGC; on Coauthor CS by others than GraphEditor and "
        "closed-form SGC",
        "For want of time. On Coauthor CS the attackers’ Hessian has 15 blocks of 6,805 columns for logistic "
        "regression, and one for the squared loss.",
        lambda experiment, dataset, method: (
            experiment in ("identification", "reconstruction")
            and (
                (dataset in ("citeseer", "amazon_photo") and method not in (*_EXACT, PLANTED))
                or (dataset == "coauthor_cs" and method not in _CLOSED_FORMS)
            )
        ),
        seeds=0,
    ),
    Limit(
        "reconstruction on the arXiv graph by other methods than GraphEditor and closed-form SGC; identification of "
        "nodes deleted by fine-tuned GraphEditor there",
        "For want of time.",
        lambda experiment, dataset, method: (
            dataset == ARXIV
            and (
                (experiment == "reconstruction" and method not in _CLOSED_FORMS)
                or (experiment == "identification" and method == "graph editor, fine-tuned")
            )
        ),
        seeds=0,
    ),
    Limit(
        "U-LiRA of methods outside the headline on Citeseer, Amazon Photo, Coauthor CS and the arXiv graph; with the "
        "softmax on the last three; with more than 16 models on the last two",
        "For want of time.",
        lambda experiment, dataset, method: (
            experiment == "lira" and dataset in ("citeseer", *_LARGE) and method not in _SHADOWED_EVERYWHERE
        ),
        seeds=0,
    ),
    Limit(
        "the attacks but membership inference, by more than one seed",
        "For want of time: a unit averages thirty deletions, a hundredth of all edges or 16 to 64 models.",
        lambda experiment, _, __: experiment in ("lira", "identification", "reconstruction", "edges"),
    ),
)

#: What is not planned, and why: by these limits, and by the methods and datasets of `EXPERIMENTS`.
EXCLUDED = (
    *((limit.what, limit.why) for limit in LIMITS),
    (
        "closeness of networks, and of their erasers but by METIS and means",
        "A network that is retrained is as close to itself as can be; of its erasers, one each of GCN, GraphSAGE and "
        "GAT, a choice for want of time.",
    ),
    (
        "deleted edges beyond Cora, Pubmed and the arXiv graph; membership beyond Cora and Citeseer",
        "For want of time. Membership inference covers the graphs that the paper uses.",
    ),
    (
        "the comparison with a retrained model, on the arXiv graph and for ridge regressions on Coauthor CS; "
        "reconstruction by regression on Citeseer and Coauthor CS",
        "For want of time. On Citeseer the regression also has fewer public nodes than features.",
    ),
    (
        "early stopping on Coauthor CS and the arXiv graph; with noise, or by GraphEraser",
        "For want of time. The authors’ scripts for Cora and Pubmed add no noise.",
    ),
    (
        "support vector machines on Coauthor CS and the arXiv graph",
        "Whether weights lie in the rows' span is decided by a decomposition of the rows, longer than a unit may take.",
    ),
    (
        "dual unlearning of support vector machines beyond Cora",
        "For want of time: it learns the training nodes one by one.",
    ),
    (
        "regularization and Theorem 1 on the arXiv graph; regularization by other methods than five",
        "For want of time: fine-tuning, with as many steps of descent, did not end within 20 minutes there.",
    ),
    (
        "U-LiRA of GraphEditor with its fine-tuning",
        "For want of time: it takes 500 steps of Adam for each of the 64 models and their retrained ones.",
    ),
    (
        "U-LiRA of GIF, IDEA, MEGU and GNNDelete for a GCN",
        "For want of time: 64 networks take longer than a unit may.",
    ),
    (
        "GIF, IDEA, MEGU and GNNDelete on Coauthor CS and arXiv, and in other experiments than `field` and U-LiRA",
        "For want of time.",
    ),
    (
        "the attack of Imprint of the Forgotten (AAAI 2026) on the unlearned model alone",
        "Only its abstract could be found, which names no features, losses or settings, and no code. U-LiRA's question "
        "unlearned or never there is asked of the unlearned model alone too, by an attacker who knows more.",
    ),
    ("edges deleted by other methods than retraining and Lethe", "No other here deletes edges but certified removal."),
    ("Flickr, Reddit and ogbn-products; ogbn-arxiv's own features", "The data cannot be reached here."),
)


def plan(
    experiments: tuple[str, ...] = tuple(EXPERIMENTS),
    datasets: tuple[str, ...] | None = None,
    methods: tuple[str, ...] | None = None,
    seeds: int = SEEDS,
    *,
    quick: bool = False,
) -> list[Unit]:
    """Return the requested units, those of the first seed first, within `LIMITS`.

    `datasets` that belong to no experiment (files or synthetic graphs) apply to all experiments.
    """
    units = []
    known = {name for each in EXPERIMENTS.values() for name in each.datasets}
    for seed in range(seeds):
        for name in experiments:
            experiment = EXPERIMENTS[name]
            for dataset in datasets or experiment.datasets:
                if dataset in known and dataset not in experiment.datasets:
                    continue
                for method in (quick and experiment.quick) or experiment.methods:
                    if methods and method not in methods:
                        continue
                    if all(seed < limit.seeds for limit in LIMITS if limit.holds(name, dataset, method)):
                        units.append(Unit(name, dataset, method, seed))
    return units


def _draws_nothing(method: str) -> bool:
    variant = VARIANTS.get(method)
    plain = variant is not None and not variant.public and not variant.spec.diffusion
    return plain or method == SECOND_PASS
