"""Print the outcome of `lethe recover`."""

from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.table import Table

from service.cli.console import note, print_result, table
from service.domain.formats import plural
from service.domain.kinds import DELETIONS, RequestKind

if TYPE_CHECKING:
    from service.domain.versions import Recovery
    from service.unlearner.recovery import Recovered

_SEND_AGAIN = "Send the failed requests again: `GET /deletions?status=failed` lists them."


def report(recovered: "Recovered", as_json: bool) -> None:
    """Print the outcome, and what to do next."""
    recovery = recovered.recovery
    if recovered.gave_up_tombstones:
        note("Unreadable tombstones of the store were given up; the others were rewritten.")
    print_result(
        _document(recovered), as_json, _agreement(recovered) if recovery is None else _table(recovered, recovery)
    )
    if recovery is not None:
        for line in (*_advice(recovery, recovered.kept, recovered.failed), *_of_the_ledger(recovered)):
            note(line)
    elif recovered.failed:
        note(_SEND_AGAIN)


def _document(recovered: "Recovered") -> dict[str, object]:
    recovery = recovered.recovery
    document: dict[str, object] = {
        "changed": recovery is not None,
        "completed": recovered.completed,
        "failed": recovered.failed,
        "gave_up_tombstones": recovered.gave_up_tombstones,
    }
    if recovery is None:
        return document
    if recovery.ledger is not None:
        document["ledger"] = asdict(recovery.ledger)
        document["lost_requests"] = {str(one): kind for one, kind in recovered.lost_requests.items()}
    return document | {
        "database_before": recovery.database_before,
        "store_before": recovery.store_before,
        "version": recovery.version.number,
        "deleted_nodes": recovery.version.deleted_nodes,
        "deleted_features": recovery.version.deleted_features,
        "deleted_edges": recovery.version.deleted_edges,
        "directions_removed": recovery.version.directions_removed,
        "unknown_nodes": recovery.unknown_nodes,
        "kept": recovered.kept,
    }


def _agreement(recovered: "Recovered") -> str:
    failed = f"{plural(recovered.failed, 'request')} failed because of lost keys. " if recovered.failed else ""
    changed = "Nothing else" if recovered.gave_up_tombstones or failed else "Nothing"
    return f"Store and database agree, and no deleted data is left. {failed}{changed} was changed."


def _table(recovered: "Recovered", recovery: "Recovery") -> Table:
    version = recovery.version
    rows = [
        ("database before", recovery.database_before or "nothing: the model was unknown to it"),
        ("store before", recovery.store_before),
        ("committed", f"version {version.number}"),
        ("deleted again: nodes", str(version.deleted_nodes)),
        ("deleted again: features of nodes", str(version.deleted_features)),
        ("deleted again: edges", str(version.deleted_edges)),
        ("directions removed", str(version.directions_removed)),
        ("deleted nodes unknown to this database", str(recovery.unknown_nodes)),
        ("requests completed", str(recovered.completed)),
        ("requests failed (keys lost)", str(recovered.failed)),
    ]
    if recovery.ledger is not None:
        found = recovery.ledger
        rows += [
            ("ledger: entries unknown to this database", str(found.entries)),
            ("ledger: tombstones in them", str(found.tombstones)),
            ("ledger: of these, joined again since", str(found.rejoined)),
            ("ledger: requests unknown to this database", str(found.requests)),
        ]
    return table("Recovered", ("", ""), rows)


def _of_the_ledger(recovered: "Recovered") -> list[str]:
    found = None if recovered.recovery is None else recovered.recovery.ledger
    if found is None:
        return []
    deletions = sum(RequestKind(kind) in DELETIONS for kind in recovered.lost_requests.values())
    others = len(recovered.lost_requests) - deletions
    advice = [
        f"The log had {plural(found.log_size, 'leaf', 'leaves')} when the ledger's newest entry was written. Leaves "
        "that this database lacks are only in copies of the log and in receipts."
    ]
    if others or found.rejoined:
        advice.append(
            f"{plural(others, 'addition or correction', 'additions and corrections')} completed since the backup "
            "are not in the ledger, and those who joined again since count as deleted: send these requests again "
            "(`--json` lists all lost requests)."
        )
    return advice


def _advice(recovery: "Recovery", kept: int, failed: int) -> list[str]:
    advice = []
    if recovery.unknown_nodes:
        advice.append(
            f"The store records {plural(recovery.unknown_nodes, 'deletion')} missing from this database. "
            f"They are not served. {min(kept, recovery.unknown_nodes)} of them are in the store's tombstones: "
            "predictions of them are answered 410, and a newly trained model that contains them is refused. The ids of "
            "any others are gone: leave them out of your training data."
        )
    if recovery.database_before is None or recovery.unknown_nodes:
        advice.append("Requests accepted after the backup of this database are missing from it: send them again.")
    if failed:
        advice.append(_SEND_AGAIN)
    return advice
