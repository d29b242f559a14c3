"""`lethe audit show`: the evidence of one deletion request, for a reader without mathematics."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from lethe_client import Audit, BatchSummary, Deletion
from service.cli.console import note, number, stdout, table
from service.cli.server import Home, Key, Url, connect

#: Figure -> its meaning, in the order shown.
_MEANINGS = {
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
    "distance_bound_before_relative": "most the weights were away from retraining, as a share",
    "distance_bound_after_relative": "most they are away from retraining since, as a share",
    "repair_iterations": "steps of re-optimisation on the remaining graph",
    "repair_weight_change": "how much these alone changed the weights, as a share of them",
    "coefficient_residual": "rounding in Lethe's own bookkeeping; proves nothing about forgetting",
}

#: The timed steps of a batch, in order.
_STEPS = ("project", "repair", "write", "swap", "erase", "verify")


def show(
    request_id: Annotated[str, typer.Argument(help="Id of the deletion request.")],
    url: Url = None,
    key: Key = None,
    home: Home = Path("var"),
) -> None:
    """Show what was done for a deletion request, and what was measured.

    Example: [bold]./lethe audit show 0197f3c2-6f6e-7c1a-9d55-0d7a5d3b2c11[/bold]
    """
    with connect(url, key, home) as client:
        print_audit(client.deletion(request_id))


def print_audit(deletion: Deletion) -> None:
    """Print the page of one request."""
    console = stdout()
    facts = [(name, text) for name, text in _facts(deletion) if text is not None]
    console.print(table(f"Deletion request {deletion.id}", ("", ""), facts))
    if deletion.explanation:
        console.print(Text(f"\n{deletion.explanation}"))
    if deletion.failure:
        console.print(Text(f"\nIt failed: {deletion.failure}"))
    if deletion.audit is None:
        if deletion.status == "queued":
            note("There is nothing to show before it is applied.")
        return
    console.print()
    console.print(table("What was measured", ("figure", "value", "meaning"), _figures(deletion.audit)))
    console.print()
    console.print(table("The update it was part of", ("", ""), _batch(deletion.audit)))


def _facts(deletion: Deletion) -> list[tuple[str, str | None]]:
    return [
        ("status", deletion.status),
        ("kind", deletion.kind),
        ("count", str(deletion.count)),
        ("reference", deletion.reference),
        ("received", _time(deletion.received_at)),
        ("applied", _time(deletion.applied_at)),
        ("completed", _time(deletion.completed_at)),
        ("failed", _time(deletion.failed_at)),
        ("cancelled", _time(deletion.cancelled_at)),
        ("guarantee", deletion.guarantee),
        ("repair", deletion.repair),
        ("already deleted by", deletion.already_deleted_by),
    ]


def _figures(audit: Audit) -> list[tuple[str, str, str]]:
    """The figures that exist for this request, each with its meaning."""
    rows = []
    for name, meaning in _MEANINGS.items():
        value = getattr(audit, name)
        if value is not None:
            rows.append((name.replace("_", " "), str(value) if isinstance(value, int) else number(value), meaning))
    return rows


def _batch(audit: Audit) -> list[tuple[str, str]]:
    batch = audit.batch
    rows = [
        ("model version", f"{audit.model_version_before} to {audit.model_version_after}"),
        ("weights before (SHA-256)", audit.weights_sha256_before),
        ("weights after (SHA-256)", audit.weights_sha256_after),
        ("batch", f"{batch.id}: {', '.join(_deleted(batch))}"),
    ]
    if audit.repair_version not in (None, audit.model_version_after):
        rows.append(("repair ended in model version", str(audit.repair_version)))
        rows.append(("weights since (SHA-256)", str(audit.repair_weights_sha256)))
    if audit.factor_method:
        rows.append(("pseudo-inverse by", audit.factor_method))
    if audit.device:
        rows.append(("device", audit.device))
    rows.extend((f"{step.replace('_', ' ')} (ms)", number(audit.durations_ms[step])) for step in _in_order(audit))
    return rows


def _in_order(audit: Audit) -> list[str]:
    """The steps that were timed, in the order they are taken; a step this version does not know comes last."""
    known = [step for step in _STEPS if step in audit.durations_ms]
    return [*known, *sorted(audit.durations_ms.keys() - set(known))]


def _deleted(batch: BatchSummary) -> list[str]:
    """How many requests a batch took and what it deleted; kinds that it did not delete are left out."""
    counted = [_counted(batch.requests, "request"), _counted(batch.nodes, "node")]
    features = [f"features of {_counted(batch.features, 'node')}"] if batch.features else []
    edges = [_counted(batch.edges, "edge")] if batch.edges else []
    return [*(counted if batch.nodes else counted[:1]), *features, *edges]


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"
