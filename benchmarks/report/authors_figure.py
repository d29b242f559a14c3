"""The report's part on the authors' own Figure 3: what their code compares."""

from benchmarks.paper.forgetting.two_losses import METHOD, PAIRS
from benchmarks.report.results import Results, called, spread
from benchmarks.report.section import Section, Table

TITLE = "Why the authors’ Figure 3 has its baselines near 2"
#: (what, file and function, what it does).
_PLACES = (
    (
        "training",
        "model_utils.py, `GNN.pred`",
        "Propagates the features twice, by `GNN.forward`, and then multiplies the rows as they were by W. So no edge "
        "enters training, retraining or any answer.",
    ),
    (
        "steps of Influence+ and Fisher+",
        "exp2_graph_newton.py, `influence_removal` and `fisher_removal`",
        "Gradient and Hessian (newton_utils.py, `lr_grad` and `lr_hessian_inv`) are of the propagated rows, at weights "
        "that were trained on the others.",
    ),
    (
        "loss of the baselines",
        "exp2_graph_newton.py",
        "Trains one class against the rest with lambda (model_utils.py, `GNN.ovr_lr_loss`; 1e-2 or 1e-3 in "
        "exp2_run.bash). Retrains by cross-entropy without lambda, for as many iterations.",
    ),
    ("loss of Projector", "exp2_graph_projector.py", "Trains and retrains by cross-entropy without lambda."),
    (
        "nodes that leave",
        "exp2_graph_newton.py; exp2_graph_projector.py",
        "Retraining beside the baselines is without all training nodes that a walk of two steps reaches from a deleted "
        "one; beside Projector it is without the deleted alone.",
    ),
    (
        "remaining nodes",
        "both, `cur_results`; plot_softmax_diff.ipynb",
        "The figure for remaining nodes is computed over the deleted ones, so it repeats the one before it.",
    ),
)
_EXPERIMENT = "two-losses"


def sections(results: Results) -> list[Section]:
    """Return the section, measured or not."""
    graphs = results.datasets(_EXPERIMENT)
    distances = [
        (*words, *(spread(results.values(_EXPERIMENT, graph, METHOD, pair, "weights")) for graph in graphs))
        for pair, words in PAIRS.items()
    ]
    return [
        Section(
            TITLE,
            "In the authors’ plot for Pubmed (plot_weight_diff.ipynb), Influence+ is at 1.95, Fisher+ at 2.15, and "
            "Projector almost at 0. Their code compares two losses: the baselines’ weights with a retraining by "
            "another loss, Projector’s with one by its own. On Pubmed, most of that distance is there before a "
            "node is deleted: see the first row of the second table. The files are in the folder cora_pubmed of "
            "CongWeilin/Projector. Commit 242b8ad removed those of the baselines, and bdfc136 before it has them. The "
            "second table is the same comparison in our own code, with their rate, lambdas and split; a seed draws "
            "the deleted node. Distances are relative to the weights before. Our other measurements take one loss, "
            "and the same rows, for each method and its retraining.",
            [
                ("What their code does", Table(("what", "file and function", "what it does"), _PLACES, prose=True)),
                (
                    "Distance of the weights to retraining",
                    Table(("weights", "retraining", *map(called, graphs)), distances),
                ),
            ],
        )
    ]
