"""`lethe ledger`: the erasure ledger, which `serve` writes and `recover --ledger` reads."""

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.console import Json, note, print_result, table
from service.cli.server import Home
from service.errors import ConfigurationError
from service.settings import load_settings

if TYPE_CHECKING:
    from service.ledger.erasure_ledger import ErasureLedger

#: A hundred years.
_MOST_DAYS = 36_500


def show(home: Home = Path("var"), as_json: Json = False) -> None:
    """Read and check every entry of the ledger, and print what they hold in total.

    Example: [bold]LETHE_LEDGER=/mnt/ledger ./lethe ledger show[/bold]
    """
    ledger = _ledger(home)
    entries = list(ledger.entries())
    newest = entries[-1] if entries else None
    found: dict[str, object] = {
        "ledger": ledger.name,
        "entries": len(entries),
        "first": entries[0].number if entries else None,
        "newest": None if newest is None else newest.number,
        "newest_sha256": None if newest is None else newest.sha256,
        "written_at": None if newest is None else newest.written_at,
        "model_version": None if newest is None else newest.record.number,
        "log_size": None if newest is None else newest.record.log_size,
        "tombstones": sum(len(one.record.tombstones) for one in entries),
        "requests": sum(len(one.record.requests) for one in entries),
    }
    rows = [(name.replace("_", " "), "none" if value is None else str(value)) for name, value in found.items()]
    print_result(found, as_json, table("Erasure ledger: every entry is in order", ("", ""), rows))


def rotate(home: Home = Path("var"), as_json: Json = False) -> None:
    """Make a new key. Entries are encrypted with it from the unlearner's next start on at the latest.

    Earlier keys stay needed until their entries are trimmed.

    Copy it to where you keep the others, outside of LETHE_HOME.

    Example: [bold]./lethe ledger rotate[/bold]
    """
    from service.ledger.erasure_ledger import add_key, key_folder, read_keys

    keys = key_folder(load_settings(home=home).home)
    if not read_keys(keys):
        raise ConfigurationError("No ledger was begun in this LETHE_HOME.", "Set LETHE_LEDGER and start Lethe first.")
    path = add_key(keys)
    note("Copy it to where you keep the others, then restart Lethe.")
    print_result({"key": str(path)}, as_json, str(path))


def trim(
    keep_days: Annotated[
        float,
        typer.Option(help="Age of the oldest backup that may still be restored. Older entries are removed."),
    ],
    home: Home = Path("var"),
    as_json: Json = False,
) -> None:
    """Remove old entries, which are needed for as long as an older backup may be restored. Lethe may run meanwhile.

    Example: [bold]LETHE_LEDGER=/mnt/ledger ./lethe ledger trim --keep-days 90[/bold]
    """
    if not 0 <= keep_days <= _MOST_DAYS:
        raise ConfigurationError(f"--keep-days must be from 0 to {_MOST_DAYS}.", "Give the age in days, such as 90.")
    removed = _ledger(home).trim(timedelta(days=keep_days))
    print_result({"removed": removed}, as_json, f"Removed {removed} entries.")


def _ledger(home: Path) -> "ErasureLedger":
    from model_store.naming import name_of
    from service.ledger.erasure_ledger import ErasureLedger

    settings = load_settings(home=home)
    ledger = ErasureLedger.of(settings.ledger, settings.home, name_of(settings.model_dir))
    if ledger is None:
        raise ConfigurationError("No erasure ledger is configured.", "Set LETHE_LEDGER as for `serve`.")
    return ledger
