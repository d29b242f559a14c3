"""`lethe delete`: ask a running Lethe to forget nodes, edges or nodes' features."""

import json
import os
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from lethe_client import Accepted, DeletionStopped
from service.cli.audit import print_audit
from service.cli.console import note, report, stdout
from service.cli.server import Home, Key, Url, connect

#: More salts than this are not printed; they fill a terminal and nobody copies them.
_PRINTED_SALTS = 10


class Kind(StrEnum):
    """What is to be forgotten of the nodes named."""

    NODE = "node"
    FEATURES = "features"
    EDGE = "edge"


def command(
    nodes: Annotated[list[str] | None, typer.Argument(metavar="[NODE]...", help="External ids of the nodes.")] = None,
    file: Annotated[Path | None, typer.Option(help="File with one id per line; - reads from stdin.")] = None,
    kind: Annotated[
        Kind, typer.Option(help="What to forget: the nodes, or only their features, or edges.")
    ] = Kind.NODE,
    edges: Annotated[
        Path | None, typer.Option(help="File with one edge per line, two ids apart by a tab or blank; - is stdin.")
    ] = None,
    reference: Annotated[str | None, typer.Option(help="Your own reference, such as a request's number.")] = None,
    salts: Annotated[Path | None, typer.Option(help="New file for the salts that link the evidence to ids.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it is completed, and show the evidence.")] = False,
    timeout: Annotated[float, typer.Option(min=0.0, help="Longest wait, in seconds.")] = 300.0,
    url: Url = None,
    key: Key = None,
    home: Home = Path("var"),
) -> None:
    """Ask Lethe to forget nodes, edges, or nodes' features.

    Examples:

    [bold]./lethe delete 12 57 --reference DSR-17 --wait[/bold]

    [bold]./lethe delete --file ids.txt --salts salts.json[/bold]

    [bold]./lethe delete --kind edge 1 2[/bold]   (the edge between 1 and 2)
    """
    named = [*(nodes or []), *(_lines(file) if file else [])]
    pairs = _pairs(_lines(edges)) if edges else []
    if kind is Kind.EDGE and named:
        if len(named) != 2:
            raise typer.BadParameter("an edge is two nodes; give more edges with --edges FILE.", param_hint="NODE...")
        pairs.append((named[0], named[1]))
        named = []
    if pairs and named:
        raise typer.BadParameter("nodes and edges go in separate requests.", param_hint="--edges")
    if not pairs and not named:
        raise typer.BadParameter("name the nodes, or give --file or --edges.", param_hint="NODE...")
    with connect(url, key, home) as client:
        accepted = client.request_deletion(
            list(dict.fromkeys(named)),
            kind="edge" if pairs else kind.value,
            edges=list(dict.fromkeys(pairs)),
            reference=reference,
        )
        _print_accepted(accepted, salts)
        if wait and accepted.status != "completed":
            try:
                print_audit(client.wait(accepted.id, timeout_s=timeout))
            except DeletionStopped as stopped:
                print_audit(stopped.deletion)
                report(stopped.detail, stopped.remedy)
                raise typer.Exit(1) from None


def _print_accepted(accepted: Accepted, file: Path | None) -> None:
    noun = "edge" if accepted.kind == "edge" else "node"
    plural = "" if accepted.count == 1 else "s"
    stdout().print(f"{accepted.id} {accepted.status}: {accepted.count} {noun}{plural}", markup=False)
    for node, earlier in accepted.already_deleted.items():
        note(f"{node}: already deleted by request {earlier}.")
    if accepted.salts is None:
        return
    if file is not None:
        _write_private(file, {"id": accepted.id, "nodes": accepted.salts.nodes, "reference": accepted.salts.reference})
        note(f"The salts are in {file}.")
    elif len(accepted.salts.nodes) <= _PRINTED_SALTS:
        note("Salts, not given again (keep them if the evidence is ever to be linked to these ids):")
        for node, salt in accepted.salts.nodes.items():
            note(f"  {node}  {salt}")
    else:
        note(f"{len(accepted.salts.nodes)} salts were not kept; --salts FILE keeps those of the next request.")


def _lines(file: Path) -> list[str]:
    text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if line.strip()]


def _pairs(lines: Sequence[str]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for line in lines:
        ends = line.split("\t") if "\t" in line else line.split()
        if len(ends) != 2:
            raise typer.BadParameter(f"this line does not hold two ids: {line!r}", param_hint="--edges")
        pairs.append((ends[0], ends[1]))
    return pairs


def _write_private(file: Path, document: object) -> None:
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
        json.dump(document, opened, indent=1)
