"""`lethe audit show` and `receipt`: the evidence of one deletion request, to be read and to be kept."""

import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import RenderableType

from lethe_client import Audit, BatchSummary, Deletion
from service.cli.console import Json, note, print_result, table
from service.cli.server import Home, Key, Url, connect
from service.domain.figures import RECEIPT, timed_steps
from service.domain.formats import duration, plural
from service.domain.guarantees import told_of_noise
from service.text import json_for_terminals


def show(
    request_id: Annotated[str, typer.Argument(help="Id of the deletion request.")],
    url: Url = None,
    key: Key = None,
    home: Home = Path("var"),
    as_json: Json = False,
) -> None:
    """Show what was done for a deletion request, with all measurements.

    Example: [bold]./lethe audit show 0197f3c2-6f6e-7c1a-9d55-0d7a5d3b2c11[/bold]
    """
    with connect(url, key, home) as client:
        print_audit(client.deletion(request_id), as_json)


def receipt(
    request_id: Annotated[str, typer.Argument(help="Id of the deletion request.")],
    out: Annotated[Path | None, typer.Option(help="New file to write.", show_default="stdout")] = None,
    url: Url = None,
    key: Key = None,
    home: Home = Path("var"),
) -> None:
    """Save the receipt of a deletion request, for `lethe audit verify`.

    Example: [bold]./lethe audit receipt 0197f3c2-6f6e-7c1a-9d55-0d7a5d3b2c11 --out receipt.json[/bold]
    """
    with connect(url, key, home) as client:
        document = client.receipt(request_id)
    if out is None:
        sys.stdout.write(json_for_terminals(document) + "\n")
        return
    with out.open("xb") as file:
        file.write(document)


def print_audit(deletion: Deletion, as_json: bool) -> None:
    """Print the page of one request."""
    print_result(deletion, as_json, *_page(deletion))
    if deletion.audit is None and deletion.status == "queued":
        note("There is no evidence before the request is applied.")


def _page(deletion: Deletion) -> Iterator[RenderableType]:
    facts = [(name, text) for name, text in _facts(deletion) if text is not None]
    yield table(f"Deletion request {deletion.id}", ("", ""), facts)
    if deletion.explanation:
        yield f"\n{deletion.explanation}"
    if deletion.failure:
        yield f"\nIt failed: {deletion.failure}"
    if deletion.audit is not None:
        if noise := told_of_noise(msgspec.structs.asdict(deletion.audit)):
            yield f"\n{noise}"
        yield ""
        yield table("Measurements", ("figure", "value", "meaning"), _figures(deletion.audit))
        yield ""
        yield table("The batch", ("", ""), _batch(deletion.audit))


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
        ("due", _time(deletion.due_at)),
        ("late", None if deletion.late is None else "yes" if deletion.late else "no"),
        ("handled", _time(deletion.handled_at)),
        ("handled by", deletion.handled_by),
        ("handles", ", ".join(deletion.handles) or None),
        ("guarantee", deletion.guarantee),
        ("repair", deletion.repair),
        ("already deleted by", deletion.already_deleted_by),
    ]


def _figures(audit: Audit) -> list[tuple[str, str, str]]:
    """The figures that exist for this request, each with its meaning."""
    rows = []
    for name, figure in RECEIPT.items():
        value = getattr(audit, name)
        if value is not None:
            rows.append((figure.label, figure.written(value), figure.meaning))
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
        rows.append(("weights after repair (SHA-256)", str(audit.repair_weights_sha256)))
    if audit.factor_method:
        rows.append(("pseudo-inverse by", audit.factor_method))
    if audit.device:
        rows.append(("device", audit.device))
    rows.extend((step, duration(ms / 1000)) for step, ms in timed_steps(audit.durations_ms))
    return rows


def _deleted(batch: BatchSummary) -> list[str]:
    """How many requests a batch took and what it deleted; kinds that it did not delete are left out."""
    counted = [plural(batch.requests, "request"), plural(batch.nodes, "node")]
    features = [f"features of {plural(batch.features, 'node')}"] if batch.features else []
    edges = [plural(batch.edges, "edge")] if batch.edges else []
    return [*(counted if batch.nodes else counted[:1]), *features, *edges]


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"
