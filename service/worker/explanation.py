"""What was done to the weights, in words for a reader without mathematics."""

from service.domain.records import BatchRecord


def explain(record: BatchRecord) -> str:
    """One or two sentences on what a batch did to the weights."""
    if record.directions_removed == 0:
        return (
            "The projection changed nothing: every direction of the deleted features is also present in the features "
            "of nodes that remain, so the weights already lay in the span of what remains. The graph, the predictions "
            "and the coefficients no longer contain the deleted nodes; the weights are not those of retraining."
        )
    directions = "one direction" if record.directions_removed == 1 else f"{record.directions_removed} directions"
    return (
        f"The projection removed {directions} of the weights that only deleted nodes had supported "
        f"(together {record.lost_direction_norm_before:.3g} before, {record.lost_direction_norm_after:.3g} after). "
        "The weights now lie in the span of the remaining nodes' features; they are not those of retraining."
    )
