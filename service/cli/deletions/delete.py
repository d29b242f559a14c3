"""`lethe delete`: ask a running Lethe to forget nodes, edges or nodes' features."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from lethe_client import Accepted, DeletionStopped
from service.cli.console import Json, doing, interrupted, note, print_result, read_lines, report, written
from service.cli.evidence.show import print_audit
from service.cli.exit_status import ExitStatus
from service.cli.server import Home, Key, Url, connect
from service.domain.formats import plural
from service.domain.kinds import Names, RequestKind, Rules

#: More salts than this are not printed; they fill a terminal and nobody copies them.
_PRINTED_SALTS = 10


def command(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NODE|A,B]...", help="Ids of the nodes, or edges as pairs of ids."),
    ] = None,
    file: Annotated[Path | None, typer.Option(help="File with one id or edge per line; - reads stdin.")] = None,
    kind: Annotated[
        RequestKind, typer.Option(help="What to forget: nodes, only their features, or edges.")
    ] = RequestKind.NODE,
    reference: Annotated[str | None, typer.Option(help="Your reference, such as a ticket number.")] = None,
    salts: Annotated[
        Path | None, typer.Option(help="New file for the salts that link the evidence to the ids.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the request is completed, and show the evidence.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=0.0, help="Longest wait (seconds).")] = 300.0,
    url: Url = None,
    key: Key = None,
    home: Home = Path("var"),
    as_json: Json = False,
) -> None:
    """Request the deletion of nodes, edges, or features of nodes.

    Examples:

    [bold]./lethe delete 12 57 --reference DSR-17 --wait[/bold]

    [bold]./lethe delete --file ids.txt --salts salts.json[/bold]

    [bold]./lethe delete --kind features 12 57[/bold]   (the nodes stay, and their edges)

    [bold]./lethe delete --kind edge 1,2 4,8[/bold]   (the edges between 1 and 2, and between 4 and 8)

    In a file, the ends of an edge may be separated by a tab or a space, for ids that contain a comma.
    """
    named = dict.fromkeys([*(names or []), *(read_lines(file) if file else [])])
    if not named:
        raise typer.BadParameter("Give the ids to forget, or --file.", param_hint="NODE...")
    of_edges = kind.rules.names is Names.EDGES
    nodes, edges = ([], list(dict.fromkeys(map(_pair, named)))) if of_edges else (list(named), [])
    with connect(url, key, home) as client:
        # Made before the request: salts are given once, and must not be lost for want of a place.
        with nullcontext() if salts is None else written(salts) as file_of_salts:
            with interrupted(lambda: "It is unknown whether Lethe accepted the request: see `./lethe audit requests`."):
                accepted = client.request_deletion(nodes, kind=kind.value, edges=edges, reference=reference)
            # Before anything is printed, which may fail.
            if file_of_salts is not None and accepted.salts is not None:
                told = msgspec.json.encode({"id": accepted.id, "salts": accepted.salts})
                file_of_salts.write(msgspec.json.format(told))
        if salts is not None and accepted.salts is None:
            salts.unlink()
        _print_accepted(accepted, kind.rules, salts, as_json)
        if not wait or accepted.status == "completed":
            return
        left = f"The request continues by itself: `./lethe audit show {accepted.id}` shows its progress."
        try:
            with interrupted(lambda: left), doing("Waiting for completion"):
                deletion = client.wait(accepted.id, timeout_s=timeout)
        except DeletionStopped as stopped:
            print_audit(stopped.deletion, as_json)
            report(stopped.detail, stopped.remedy)
            raise typer.Exit(ExitStatus.FAILED) from None
        print_audit(deletion, as_json)


def _print_accepted(accepted: Accepted, rules: Rules, file: Path | None, as_json: bool) -> None:
    asked = rules.asked(plural(accepted.count, rules.names.one, rules.names.value)).removeprefix("the ")
    print_result(accepted, as_json, f"{accepted.id} {accepted.status}: {asked}")
    for name, earlier in accepted.already_deleted.items():
        by = f" by request {earlier}" if earlier else ""
        note(f"{name}: already deleted{by}.")
    if accepted.salts is None:
        return
    if file is not None:
        note(f"The salts are in {file}.")
    elif as_json:
        # They are in what was printed.
        return
    elif len(accepted.salts.nodes) <= _PRINTED_SALTS:
        note("Salts, shown only once (keep them to link the evidence to these ids later):")
        for node, salt in accepted.salts.nodes.items():
            note(f"  {node}  {salt}")
        if accepted.salts.reference is not None:
            note(f"  the reference  {accepted.salts.reference}")
    else:
        note(f"{len(accepted.salts.nodes)} salts were not saved; --salts FILE saves those of the next request.")


def _pair(text: str) -> tuple[str, str]:
    """The two ends of an edge, apart by the first of tab, comma and blank that occurs at all."""
    separator = next((mark for mark in "\t, " if mark in text), None)
    ends = [end.strip() for end in text.split(separator)] if separator else [text]
    if len(ends) != 2 or not all(ends):
        raise typer.BadParameter(f"{text!r} is not an edge. Give two ids, such as 12,57", param_hint="A,B")
    return ends[0], ends[1]
