"""The report's part on the authors' own Figure 3: what their code compares."""

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
#: Our own run of the same comparison on each graph: Cora, Citeseer, Pubmed.
_RUN = (
    ("no node deleted, no step taken", "to cross-entropy", "1.47", "0.39", "1.96"),
    ("Influence+, one node deleted", "to cross-entropy, as in the authors’ code", "1.48", "0.39", "1.95"),
    ("Influence+, one node deleted", "to its own loss, without the same nodes", "0.098", "0.011", "0.0076"),
    ("Fisher+, one node deleted", "to cross-entropy, as in the authors’ code", "1.60", "0.70", "2.14"),
    ("Fisher+, one node deleted", "to its own loss, without the same nodes", "0.45", "0.63", "0.24"),
)


def sections() -> list[Section]:
    """Return the section."""
    return [
        Section(
            TITLE,
            "In the authors’ plot for Pubmed (plot_weight_diff.ipynb), Influence+ is at 1.95, Fisher+ at 2.15, and "
            "Projector almost at 0. Their code compares two losses: the baselines’ weights with a retraining by "
            "another loss, Projector’s with one by its own. A baseline that deletes nothing and takes no step is "
            "1.96 away on Pubmed. The files are in the folder cora_pubmed of CongWeilin/Projector. Commit 242b8ad "
            "removed those of the baselines, and bdfc136 before it has them. The second table is a run of our own "
            "(python -m benchmarks.paper.forgetting.two_losses), with their rate, lambdas and split, and one seed. "
            "Distances are relative to the weights before. Our measurements take one loss, and the same rows, for "
            "each method and its retraining.",
            [
                ("What their code does", Table(("what", "file and function", "what it does"), _PLACES, prose=True)),
                (
                    "Distance of the weights to retraining",
                    Table(("weights", "retraining", "Cora", "Citeseer", "Pubmed"), _RUN),
                ),
            ],
        )
    ]
