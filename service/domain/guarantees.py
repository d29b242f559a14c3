"""What guarantees mean, for a reader without mathematics."""

from service.domain.states import Guarantee

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
