"""Requests that name what was declared public, and can therefore not be carried out: pure."""

from collections.abc import Collection, Sequence
from uuid import UUID

from service.batches.resolve import DecryptedRequest


def refused_for_public(claimed: Sequence[DecryptedRequest], public: Collection[str]) -> dict[UUID, str]:
    """The requests that name public nodes, or edges between two of them, each with the reason; nothing of them is done.

    An edge with one public end is the other end's to delete. The API refuses such requests; one can still come here
    when it was queued for another model, before this one was imported.
    """
    refused = {}
    for each in claimed:
        nodes = sum(node in public for node in each.targets.nodes)
        edges = sum(left in public and right in public for left, right in each.targets.edges)
        if nodes or edges:
            named = f"{nodes} of its nodes are public" if nodes else f"{edges} of its edges join two public nodes"
            refused[each.request.id] = (
                f"{named}: the model's MLP was trained on public nodes, which can never be deleted. Nothing in "
                "this request was deleted."
            )
    return refused
