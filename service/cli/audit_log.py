"""`lethe audit key`, `export` and `verify`: the log's public key, a copy of the log, and its verification."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import orjson
import typer

from model_store.work import Work
from service.cli.console import ExitStatus, Json, interrupted, note, print_result, report, show_progress, written
from service.cli.database import opened
from service.cli.server import Home, settings_of_used
from service.domain.formats import in_groups, plural
from service.errors import ConfigurationError
from service.log.canonical import RepeatedMember, parse_json
from service.log.checkpoints import Checkpoint, VerifierKey
from service.log.export import FORMAT as EXPORT
from service.log.receipt import FORMAT as RECEIPT
from service.log.verification import Report
from service.settings import load_settings

if TYPE_CHECKING:
    from service.db.engine import Engine

PublicKey = Annotated[
    str,
    typer.Option(
        "--key",
        help="Public key of the log, as printed by `lethe audit key`, or a file with one key per line: every key "
        "that signed.",
    ),
]
#: Number of checks whether the newest events are signed, and seconds between them.
_SIGNING_LOOKS, _SIGNING_PAUSE_S = 20, 0.1
#: Most findings printed (there may be one per leaf), and most of the newest events without a request.
_SHOWN = 50


@dataclass(frozen=True)
class _Linked:
    """Targets and reference that salts have linked to a receipt."""

    nodes: Sequence[str] = ()
    reference: str | None = None
    #: Kind and status of the request.
    request: Mapping[str, str] | None = None


def key(
    rotate: Annotated[bool, typer.Option("--rotate", help="Add a newer key.")] = False,
    number: Annotated[int | None, typer.Option(min=1, help="Number of the new key.", show_default="the next")] = None,
    home: Home = Path("var"),
    as_json: Json = False,
) -> None:
    """Print the public key that verifies the log. Publish it where verifiers will look for it.

    After `--rotate`, the next start of `serve` signs with the old and the new key. Publish the new key, then remove the
    old `log-<number>.key`: from the following start on, only the new key signs.

    Example: [bold]./lethe audit key > log.pub[/bold]
    """
    from service.log.signing_keys import LogKeys

    settings = load_settings(home=home)
    folder = settings.home / "keys"
    keys = LogKeys.add(folder, number) if rotate else LogKeys.open(folder, create=False)
    public = [str(signer.public) for signer in keys.signers().values()]
    print_result({"keys": public}, as_json, *public)


def export(
    out: Annotated[Path | None, typer.Option(help="New file to write.", show_default="stdout")] = None,
    home: Home = Path("var"),
) -> None:
    """Export the transparency log, one JSON document per line: leaves, events and checkpoints, without ids.

    Uses DATABASE_URL, or the private Postgres of LETHE_HOME; Lethe may be running.

    Example: [bold]./lethe audit export --out log.ndjson[/bold]
    """
    from service.processes.private_servers import open_servers

    left = "No file was kept, since an incomplete log cannot be verified. Run the same command again."
    with (
        interrupted(lambda: left),
        open_servers(settings_of_used(home)) as settings,
        written(out) as file,
        show_progress("Reading the log") as work,
    ):
        assert settings.database_url is not None
        lines = asyncio.run(_export(settings.database_url, file, work))
    note(f"{plural(lines, 'line')} written{'' if out is None else f' to {out}'}.")


async def _export(database_url: str, file: IO[bytes], work: Work) -> int:
    from service.log.export_pages import export_lines

    written = 0
    async with opened(database_url) as engine:
        if not await _signed(engine):
            note("The newest events are not signed yet. Start Lethe to sign them.")
        work.begin("Writing the log")
        async for page in export_lines(engine):
            file.writelines(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in page)
            written += len(page)
    return written


async def _signed(engine: "Engine") -> bool:
    """Return whether a checkpoint covers every leaf, giving a running Lethe a moment to sign new ones."""
    from service.db.transactions import transaction
    from service.log.signed_checkpoints import CheckpointRepository

    for _ in range(_SIGNING_LOOKS):
        async with transaction(engine) as connection:
            if not await CheckpointRepository(connection).is_due():
                return True
        await asyncio.sleep(_SIGNING_PAUSE_S)
    return False


def verify(
    document: Annotated[Path, typer.Argument(help="A receipt or an export.")],
    public_key: PublicKey,
    against: Annotated[
        Path | None, typer.Option(help="An earlier checkpoint, from `GET /log/checkpoint` or `watch`.")
    ] = None,
    salts: Annotated[
        Path | None, typer.Option(help="The 202 answer to the request, or the file written by `delete --salts`.")
    ] = None,
    reference: Annotated[str | None, typer.Option(help="The reference of the request; needs --salts.")] = None,
    as_json: Json = False,
) -> None:
    """Verify a receipt or an export offline, with only the public key. Exits with 1 if anything was changed.

    Example: [bold]./lethe audit verify receipt.json --key log.pub[/bold]
    """
    keys = read_keys(public_key)
    known = None if against is None else read_checkpoint(against, keys)
    if reference is not None and salts is None:
        raise ConfigurationError("--reference needs the salts.", "Give --salts with the 202 answer to the request.")
    left = "Nothing was changed and there is no result. Run the same command again."
    linked = _Linked()
    with (
        interrupted(lambda: left),
        show_progress(f"Checking {document}") as work,
        document.open(encoding="utf-8") as file,
    ):
        first = file.readline()
        kind = _format(first, document)
        if kind == EXPORT:
            if salts is not None:
                raise ConfigurationError(
                    "--salts needs a receipt: an export covers many requests.", "Give --salts with a receipt."
                )
            work.begin(f"Checking {document}", document.stat().st_size)
            outcome = _verify_export(first, file, keys, known, work)
        else:
            outcome, linked = _verify_receipt(first + file.read(), keys, known, salts, reference)
    _report(outcome, linked, as_json)


def read_keys(text: str) -> list[VerifierKey]:
    """Return the public keys in the file named `text` or, if there is no such file, the key in `text` itself.

    Raises ConfigurationError.
    """
    path = Path(text)
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else [text]
    except UnicodeDecodeError:
        lines = []
    keys = [VerifierKey.parse(line) for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise ConfigurationError(f"{text} contains no public key.", "`./lethe audit key` prints it.")
    return keys


def read_checkpoint(path: Path, keys: list[VerifierKey]) -> Checkpoint:
    """Return the checkpoint in a file. Raises NotVerified when none of `keys` signed it."""
    from service.log import checkpoints

    return checkpoints.verify(path.read_text(encoding="utf-8"), keys)


def _format(first_line: str, path: Path) -> str:
    """Return the format of a whole document, or of an export from its first line."""
    try:
        found = parse_json(first_line.encode())
    except ValueError:
        # A receipt formatted over several lines.
        return RECEIPT
    if isinstance(found, dict) and found.get("format") in (EXPORT, RECEIPT):
        return str(found["format"])
    raise ConfigurationError(f"{path} is neither a receipt nor an export.", "Give the JSON file as Lethe wrote it.")


def _verify_export(
    first: str, file: IO[str], keys: list[VerifierKey], against: Checkpoint | None, work: Work
) -> Report:
    from service.log.export import verify_export

    def records() -> Iterator[Any]:
        yield parse_json(first.encode())
        for line in file:
            # Counts characters as bytes: an export is almost all ASCII.
            work.count(len(line))
            try:
                yield parse_json(line.encode())
            except (ValueError, RepeatedMember):
                # Not an object, so reported as an invalid line.
                yield None

    return verify_export(records(), keys, against)


def _verify_receipt(
    text: str, keys: list[VerifierKey], against: Checkpoint | None, salts: Path | None, reference: str | None
) -> tuple[Report, _Linked]:
    from service.log.receipt import linked, verify_receipt

    try:
        document = parse_json(text.encode())
    except ValueError:
        raise ConfigurationError("The file is not JSON.", "Give a receipt or an export as Lethe wrote it.") from None
    outcome = verify_receipt(document, keys, against)
    nodes: dict[str, bool] = {}
    names_reference = None
    if salts is not None and outcome.is_good:
        try:
            nodes, names_reference = linked(document, parse_json(salts.read_bytes())["salts"], reference)
        except (ValueError, KeyError, TypeError):
            raise ConfigurationError(
                f"{salts} is not a 202 answer with salts.", "Give the answer as Lethe returned it."
            ) from None
        for node, is_named in nodes.items():
            if not is_named:
                outcome.find(None, f"the receipt does not cover {node} with this salt")
        if names_reference is False:
            outcome.find(None, f"the receipt does not contain the reference {reference} with this salt")
    named = [node for node, is_named in nodes.items() if is_named]
    request = {name: document["summary"][name] for name in ("kind", "status")} if named else None
    return outcome, _Linked(named, reference if names_reference else None, request)


def _report(outcome: Report, linked: _Linked, as_json: bool) -> None:
    checkpoint = outcome.checkpoint
    document = {
        "good": outcome.is_good,
        "leaves": outcome.leaves,
        "checkpoints": outcome.signed,
        "fingerprint": outcome.fingerprint,
        "log": None if checkpoint is None else {"origin": checkpoint.origin, "size": checkpoint.size},
        "nodes": linked.nodes,
        "request": linked.request,
        "reference": linked.reference,
        "other_events": [{"leaf": index, "what": what} for index, what in outcome.unrequested],
        "findings": [{"leaf": finding.index, "what": finding.what} for finding in outcome.findings],
    }
    print_result(document, as_json, *_lines(outcome, linked))
    if not outcome.is_good:
        found = plural(len(outcome.findings), "thing")
        report(f"{found} failed.", "Do not rely on this document; ask the operator.")
        raise typer.Exit(ExitStatus.FAILED)


def _lines(outcome: Report, linked: _Linked) -> Iterator[str]:
    yield from (f"The receipt covers {node}." for node in linked.nodes)
    if linked.request is not None:
        yield f"It covers a deletion of kind {linked.request['kind']}: {linked.request['status']}."
    if linked.reference is not None:
        yield f"The receipt contains the reference {linked.reference}."
    yield from map(str, outcome.findings[:_SHOWN])
    if len(outcome.findings) > _SHOWN:
        yield f"… and {len(outcome.findings) - _SHOWN} more"
    if not outcome.is_good:
        return
    assert outcome.checkpoint is not None
    yield (
        f"Valid: {plural(outcome.leaves, 'leaf', 'leaves')} in the log {outcome.checkpoint.origin} of size "
        f"{outcome.checkpoint.size}, {plural(outcome.signed, 'checkpoint')} signed by a trusted key."
    )
    if outcome.fingerprint is not None:
        yield f"Fingerprint, as printed: {in_groups(outcome.fingerprint)}"
    yield from (f"No deletion, leaf {index}: {what}." for index, what in outcome.unrequested[-_SHOWN:])
