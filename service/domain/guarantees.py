"""What guarantees mean, for a reader without mathematics."""

import math
from collections.abc import Mapping
from typing import Any

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
#: The same for whoever has never seen a model: on papers.
IN_PLAIN_WORDS = {
    Guarantee.SPAN: (
        "The model was not trained again. It is built from the remaining data, and may still carry some of what it had "
        "learned from this data."
    ),
    Guarantee.RETRAINED: (
        "The model was then corrected. It is now the one that training without this data would have given, up to a "
        "proven difference."
    ),
    Guarantee.GRAPH_ONLY: "The model itself was trained with this data, and stays as it was.",
}
#: The same of a request that found everything deleted already.
NOTHING_LEFT = "An earlier request had already deleted everything that this one names. Its receipt says what was done."
#: And where that is all that is known.
NOTHING_LEFT_UNKNOWN = (
    "Everything that this request names had already been deleted. Only a receipt of that time says what was done: the "
    "database was restored from an older backup."
)


def noise_in_words(epsilon: float, delta: float, planned: int, mu: float) -> str:
    """What noise in published weights hides and what it does not: the one paragraph on it, wherever it is shown.

    `mu` is that of one version. Of two equally likely cases an observer of all `planned` ones is right in at most a
    share Phi(sqrt(planned) mu / 2); see `projector.certified.gaussian.success`.
    """
    success = math.ceil(500 * (1 + math.erf(mu * math.sqrt(planned / 8)))) / 10
    return (
        "Whatever is published of this model is computed from weights with noise. Nobody who sees all of it, for "
        f"{planned:,} versions after a deletion, can tell whether what was deleted was unlearned or never was in the "
        f"training, but for a stated advantage: right in at most {success:g} % of cases, where guessing is right in "
        f"50 % (epsilon {epsilon:g}, delta {delta:g}). This does not hide who was deleted, nor when, nor what "
        "retraining without them reveals by itself. It does not cover versions from before it was turned on, nor parts "
        "of the model that stay as they were fixed earlier. The audit tells of the weights without noise: publishing "
        "it would undo this. Less can be promised later, or nothing: that holds for earlier deletions, too."
    )


def told_of_noise(figures: Mapping[str, Any]) -> str | None:
    """The same of a version by the figures of its audit; None where it is published as it is."""
    if figures.get("publication_mu") is None:
        return None
    names = ("publication_epsilon", "publication_delta", "publications_planned", "publication_mu")
    return noise_in_words(*(figures[name] for name in names))
