"""What figures and guarantees mean, for a reader without mathematics."""

from service.domain.states import Guarantee

#: Figure of an audit -> its meaning, in the order in which they are shown.
FIGURES = {
    "deleted": "nodes or edges deleted for this request; the others it names were gone already",
    "directions_removed": "directions of the feature space that only the deleted nodes supported",
    "rank_before": "dimensions the nodes' features spanned before",
    "rank_after": "dimensions the remaining nodes' features span",
    "injected_norm_before": "weight the model had put on these nodes' features",
    "injected_norm_after": "weight still booked on them; 0 by construction once they have left the graph",
    "lost_direction_norm_before": "weight along the removed directions before",
    "lost_direction_norm_after": "weight left along them; 0 up to rounding is right",
    "channel_norm_before": "weight on the injected test column before",
    "channel_norm_after": "weight left on it; 0 up to rounding is right",
    "span_residual": "share of the weights that the remaining nodes do not explain, measured from disk",
    "weight_change": "how much the batch changed the weights, as a share of them",
    "distance_bound_start_relative": "most the weights were away from the optimum when the batch began, as a share",
    "distance_bound_before_relative": "most the weights were away from retraining, as a share",
    "distance_bound_after_relative": "most they are away from retraining since, as a share",
    "repair_tolerance": "most that this may be for the weights to count as those of retraining",
    "repair_iterations": "steps of re-optimisation on the remaining graph",
    "repair_weight_change": "how much these alone changed the weights, as a share of them",
    "factor_age_s": (
        "seconds that a factor of the loss' curvature made before the deletion may stay in memory after it, to speed "
        "up repairs; it is never written to disk, and does not influence what the weights converge to"
    ),
    "coefficient_residual": "rounding in Lethe's own bookkeeping; proves nothing about forgetting",
}

#: What holds of the weights, in a sentence.
GUARANTEES = {
    Guarantee.SPAN: (
        "The weights lie in the span of the remaining nodes' features. They are not those of a model retrained without "
        "what was deleted, and may still carry what training learned from it."
    ),
    Guarantee.RETRAINED: (
        "The weights are those of a model retrained without what was deleted, up to the distance that the bound states."
    ),
    Guarantee.GRAPH_ONLY: (
        "What was deleted has left the graph and every prediction. The weights were trained with it and stay as they "
        "are."
    ),
}
#: The same of a request that found everything deleted already.
NOTHING_LEFT = "An earlier request had deleted everything that this one names; its own receipt says what was done."
#: And where that is all that is known.
NOTHING_LEFT_UNKNOWN = (
    "Everything that this request names had been deleted before. What was done then, only a receipt of that time "
    "tells: the database was restored from an older backup."
)
