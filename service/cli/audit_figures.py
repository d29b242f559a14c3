"""`lethe audit summary`, `requests`, `show` and `receipt`: the audit of all requests and of one."""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import RenderableType

from lethe_client import Audit, AuditSummary, BatchSummary, Deletion, Percentiles
from projector.forgetting.status import RepairStatus
from service.cli.console import ExitStatus, Json, interrupted, note, print_result, table, written
from service.cli.server import Home, Key, Url, connect
from service.domain.figures import RECEIPT, TOTALS, timed_steps
from service.domain.formats import duration, number, percent, plural, share
from service.domain.kinds import RequestKind
from service.domain.states import Guarantee, RequestStatus, noise_in_a_sentence
from service.errors import ConfigurationError
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
    yield table(f"Request {deletion.id}", ("", ""), facts)
    if deletion.explanation:
        yield f"\n{deletion.explanation}"
    if deletion.failure:
        yield f"\nIt failed: {deletion.failure}"
    if deletion.audit is not None:
        if noise := noise_in_a_sentence(msgspec.structs.asdict(deletion.audit)):
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
        ("on hold since", _time(deletion.held_at)),
        ("waits for", deletion.waits_for),
        ("handled", _time(deletion.handled_at)),
        ("handled by", deletion.handled_by),
        ("handles", ", ".join(deletion.handles) or None),
        ("guarantee", deletion.guarantee),
        ("repair", deletion.repair),
        ("already deleted by", deletion.already_deleted_by),
    ]


def _figures(audit: Audit) -> list[tuple[str, str, str]]:
    """Return label, value and meaning of each figure that this request has."""
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
    """Return how many requests a batch took and what it deleted; leaves out kinds without deletions."""
    counted = [plural(batch.requests, "request"), plural(batch.nodes, "node")]
    features = [f"features of {plural(batch.features, 'node')}"] if batch.features else []
    edges = [plural(batch.edges, "edge")] if batch.edges else []
    return [*(counted if batch.nodes else counted[:1]), *features, *edges]


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"


#: Current values, whatever the days.
_NOW = ("open_past_deadline", "open_near_deadline", "open_failed", "open_held", "model_version", "rank", "live_nodes")
_DAY = ["%Y-%m-%d"]
Since = Annotated[
    datetime | None, typer.Option(formats=_DAY, help="First day of receipt (UTC).", show_default="from the beginning")
]
Until = Annotated[
    datetime | None, typer.Option(formats=_DAY, help="Day after the last day (UTC).", show_default="to the end")
]


class Format(StrEnum):
    """Format of the file."""

    CSV = "csv"
    NDJSON = "ndjson"


def summary(
    since: Since = None,
    until: Until = None,
    url: Url = None,
    key: Key = None,
    home: Home = Path("var"),
    as_json: Json = False,
) -> None:
    """Summarise deletion requests: how many, how they ended, how long they took, and what is still open.

    Exits with 1 if a request is past its deadline, or failed and unhandled. Requires the scope audit:read.

    Example: [bold]./lethe audit summary --since 2026-10-01 --until 2026-11-01[/bold]
    """
    with connect(url, key, home) as client:
        found = client.audit_summary(
            since=None if since is None else since.date(),
            until=None if until is None else until.date(),
        )
    print_result(found, as_json, *_summary_page(found))
    if found.open_past_deadline or found.open_failed:
        raise typer.Exit(ExitStatus.FAILED)


def requests(
    form: Annotated[
        Format, typer.Option("--format", help="A table, or one JSON document per line (as with --json).")
    ] = Format.CSV,
    out: Annotated[Path | None, typer.Option(help="New file to write.", show_default="stdout")] = None,
    since: Since = None,
    until: Until = None,
    status: Annotated[RequestStatus | None, typer.Option(help="Only requests with this status.")] = None,
    kind: Annotated[RequestKind | None, typer.Option(help="Only requests of this kind.")] = None,
    guarantee: Annotated[Guarantee | None, typer.Option(help="Only requests with this guarantee.")] = None,
    repair: Annotated[RepairStatus | None, typer.Option(help="Only requests with this state of repair.")] = None,
    held: Annotated[bool, typer.Option("--held", help="Only requests on hold.")] = False,
    at: Annotated[
        list[str] | None,
        typer.Option(
            "--threshold",
            metavar="FIGURE_min=X",
            help="Bound on a figure, such as injected_norm_after_min=1e-9 or "
            "distance_bound_after_relative_max=1e-8; repeatable.",
        ),
    ] = None,
    url: Url = None,
    key: Key = None,
    home: Home = Path("var"),
    as_json: Json = False,
) -> None:
    """Write one line per deletion request, with all figures of its audit. Requires the scope audit:read.

    For spreadsheets and scripts. For the signed evidence, use `lethe audit export`.

    Example: [bold]./lethe audit requests --since 2026-10-01 --out october.csv[/bold]
    """
    named = {"status": status, "kind": kind, "guarantee": guarantee, "repair": repair}
    filters: dict[str, str | float] = {name: value.value for name, value in named.items() if value is not None}
    filters |= {"held": "true"} if held else {}
    filters |= dict(map(_threshold, at or []))
    chosen = Format.NDJSON if as_json else form
    left = "No file was kept, since an incomplete audit looks like a complete one. Run the same command again."
    with connect(url, key, home) as client, interrupted(lambda: left), written(out) as file:
        for part in client.audit_export(chosen.value, since=_moment(since), until=_moment(until), **filters):
            file.write(part)
    if out is not None:
        note(f"Written to {out}.")


def _threshold(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise ConfigurationError(
            f"{text} is not a threshold.", "Give it as --threshold injected_norm_after_min=1e-9."
        ) from None


def _moment(day: datetime | None) -> datetime | None:
    return None if day is None else day.replace(tzinfo=UTC)


def _summary_page(found: AuditSummary) -> Iterator[RenderableType]:
    days = f"{found.since or 'the beginning'} to {found.until or 'now'}"
    counted = [
        (TOTALS.get(state, f"{name} {state}"), number(count))
        for name, counts in (
            ("", found.by_status),
            ("", found.by_kind),
            ("deletions, guarantee", found.by_guarantee),
            ("repair", found.by_repair),
        )
        for state, count in counts.items()
        if count
    ]
    rows = [
        (TOTALS["requests"], number(found.requests)),
        (TOTALS["refused"], number(found.refused)),
        *((name.strip(), count) for name, count in counted),
    ]
    rows += [
        (TOTALS["seconds_to_applied"], _percentiles(found.seconds_to_applied)),
        (TOTALS["seconds_to_completed"], _percentiles(found.seconds_to_completed)),
        (TOTALS["unchanged_projection_share"], percent(found.unchanged_projection_share)),
    ]
    yield table(f"Requests to {found.model} received from {days}", ("", ""), rows)
    if found.months:
        months = [
            (f"{one.month:%Y-%m}", number(one.on_time), number(one.late), share(one.on_time_share))
            for one in found.months
        ]
        columns = ("", TOTALS["on_time"], TOTALS["late"], "On time")
        yield ""
        yield table("By month of receipt, without drills", columns, months)
    oldest = found.oldest_open
    now = [
        (TOTALS["open"], number(found.open)),
        ("Oldest", "none" if oldest is None else f"{oldest.id}, {oldest.received_at:%Y-%m-%d %H:%M:%S} UTC"),
        *((TOTALS[name], number(getattr(found, name))) for name in _NOW),
    ]
    yield ""
    yield table("Now", ("", ""), now)
    if found.noise:
        yield f"\n{found.noise}"


def _percentiles(found: Percentiles) -> str:
    return f"{duration(found.p50)} (50 %), {duration(found.p95)} (95 %), {duration(found.p99)} (99 %)"
