"""Send requests from the command line: in as many parts as the server needs, with their salts and their evidence."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import typer

from lethe_client import Accepted, DeletionStopped, LetheClient, LetheClientError, ProblemError, WaitTimeout
from service.cli.audit_figures import print_audit
from service.cli.console import ExitStatus, interrupted, note, print_result, report, show_progress, written
from service.domain.formats import plural
from service.domain.kinds import RequestKind
from service.errors import BodyTooLarge, QueueFull

_T = TypeVar("_T")
_Answer = TypeVar("_Answer")

Reference = Annotated[str | None, typer.Option(help="Your reference, such as a ticket number.")]
SaltsFile = Annotated[
    Path | None,
    typer.Option("--salts", help="New file for the salts that link the evidence to the ids; one for each request."),
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until the request is completed, and show the evidence.")]
Timeout = Annotated[float, typer.Option(min=0.0, help="Longest wait (seconds).")]

#: Longer lists of salts are not printed: they fill a terminal and nobody copies them.
_PRINTED_SALTS = 10
#: Largest part before the server has refused one (bytes of JSON): below its limit, whatever else the request holds.
_PART_BYTES = 900_000


@dataclass(frozen=True)
class Manner:
    """How a command sends its requests."""

    #: New file for salts.
    salts: Path | None
    #: Whether to wait for the end, and how long (seconds).
    wait: bool
    timeout: float
    as_json: bool


def send(client: LetheClient, items: Sequence[_T], request: Callable[[Sequence[_T]], Accepted], manner: Manner) -> None:
    """Request all `items`, print what was accepted and, if asked, wait for the end and print the evidence.

    A list that is too long for one request is split. If a part is refused, those before it stay accepted.
    """
    sent: list[Accepted] = []
    taken = 0

    def request_part(part: Sequence[_T]) -> Accepted:
        nonlocal taken
        salts = _file_of(manner.salts, len(sent))
        # Create the file before the request: salts are sent only once and must not be lost for lack of space.
        with nullcontext() if salts is None else written(salts) as file:
            accepted = request(part)
            taken += len(part)
            # Write before printing, which may fail.
            if file is not None and accepted.salts is not None:
                file.write(msgspec.json.format(msgspec.json.encode({"id": accepted.id, "salts": accepted.salts})))
        if salts is not None and accepted.salts is None:
            salts.unlink()
        return accepted

    try:
        with interrupted(lambda: "It is unknown whether Lethe accepted the request: see `./lethe audit requests`."):
            for accepted in in_parts(items, request_part, patience_s=manner.timeout):
                _print_accepted(accepted, _file_of(manner.salts, len(sent)), manner.as_json)
                sent.append(accepted)
    except (LetheClientError, OSError):
        if sent:
            accepted_so_far = f"{plural(len(sent), 'request')} for the first {taken:,} of {len(items):,} entries"
            note(f"Lethe accepted {accepted_so_far}. Do not send these again. The rest failed:")
        raise
    if manner.wait:
        deadline = time.monotonic() + manner.timeout
        waiting = [accepted for accepted in sent if accepted.status != "completed"]
        completed = [_completes(client, accepted, deadline, manner.as_json) for accepted in waiting]
        if not all(completed):
            raise typer.Exit(ExitStatus.FAILED)


def in_parts(
    items: Sequence[_T], request: Callable[[Sequence[_T]], _Answer], *, patience_s: float
) -> Iterator[_Answer]:
    """Yield the answers to as few requests as the server takes.

    The server refuses parts that are too large, and, for at most `patience_s`, parts that its queue has no room for.
    """
    first, most = 0, len(items)
    deadline = time.monotonic() + patience_s
    while first < len(items):
        part = _within(items[first : first + most])
        try:
            answer = request(part)
        except ProblemError as error:
            if error.status == QueueFull.status and time.monotonic() < deadline:
                time.sleep(float(error.extra.get("retry_after", 1)))
                continue
            if error.status != BodyTooLarge.status or len(part) == 1:
                raise
            most = min(int(error.extra.get("max_nodes", most)), len(part) // 2 + len(part) % 2)
            continue
        yield answer
        first += len(part)


def _within(items: Sequence[_T]) -> Sequence[_T]:
    """Return the first of `items`, at least one, up to `_PART_BYTES`."""
    size = 0
    for count, item in enumerate(items):
        size += len(msgspec.json.encode(item)) + 1
        if count and size > _PART_BYTES:
            return items[:count]
    return items


def _file_of(salts: Path | None, earlier: int) -> Path | None:
    """Return the file for the salts of a request: `salts.json`, then `salts-2.json`, and so on."""
    return salts if salts is None or not earlier else salts.with_stem(f"{salts.stem}-{earlier + 1}")


def _print_accepted(accepted: Accepted, file: Path | None, as_json: bool) -> None:
    listed = RequestKind(accepted.kind).rules.asked(accepted.count).removeprefix("the ")
    print_result(accepted, as_json, f"{accepted.id} {accepted.status}: {listed}")
    for name, earlier in accepted.already_deleted.items():
        by = f" by request {earlier}" if earlier else ""
        note(f"{name}: already deleted{by}.")
    if accepted.salts is None:
        return
    if file is not None:
        note(f"The salts are in {file}.")
    elif as_json:
        # The printed JSON contains them.
        return
    elif len(accepted.salts.nodes) <= _PRINTED_SALTS:
        note("Salts, shown only once (keep them to link the evidence to these ids later):")
        for node, salt in accepted.salts.nodes.items():
            note(f"  {node}  {salt}")
        if accepted.salts.reference is not None:
            note(f"  the reference  {accepted.salts.reference}")
    else:
        note(f"{len(accepted.salts.nodes)} salts were not saved; --salts FILE saves those of the next request.")


def _completes(client: LetheClient, accepted: Accepted, deadline: float, as_json: bool) -> bool:
    """Wait for a request until `deadline`, print its evidence or why there is none; return whether it is completed."""
    left = f"The request continues by itself: `./lethe audit show {accepted.id}` shows its progress."
    try:
        with interrupted(lambda: left), show_progress("Waiting for completion"):
            deletion = client.wait(accepted.id, timeout_s=max(0.0, deadline - time.monotonic()))
    except DeletionStopped as stopped:
        print_audit(stopped.deletion, as_json)
        report(stopped.detail, stopped.remedy)
        return False
    except WaitTimeout as late:
        report(late.detail, late.remedy)
        return False
    print_audit(deletion, as_json)
    return True
