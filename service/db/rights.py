"""What each process of Lethe may do in the database, table by table: neither owns any.

A process of the api adds what was asked of it and changes nothing of a request; the unlearner alone writes what became
of one, the versions and the log. Neither takes back what was deleted or measured, nor makes a key of the interface, nor
says where webhooks are sent.
What triggers derive from requests both may read alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass

#: Belong to the server, not to one database; the same for all Lethes on it.
API_ROLE = "lethe_api"
UNLEARNER_ROLE = "lethe_unlearner"
#: Reads the views, which hold no reference, list of ids or key, and no table: for tools that draw charts.
AUDIT_ROLE = "lethe_audit"

#: Written by triggers on the tables that they are derived from, and by `audit_fold`, with the rights of the owner.
DERIVED = frozenset({"request_search", "audit_counts", "audit_times"})

_ALL = "*"


@dataclass(frozen=True)
class Rights:
    """What may be done to one table besides reading it; columns are separated by blanks."""

    #: Columns of a new row that may be given; the others get their defaults. "*" for all.
    add: str = ""
    #: Columns that may be changed; others stay as they were added.
    change: str = ""
    remove: bool = False

    def sql(self) -> str:
        """As GRANT has it."""
        given = ["SELECT"]
        if self.add:
            given.append("INSERT" if self.add == _ALL else f"INSERT ({', '.join(self.add.split())})")
        if self.change:
            given.append(f"UPDATE ({', '.join(self.change.split())})")
        if self.remove:
            given.append("DELETE")
        return ", ".join(given)


_READ = Rights()
#: What was done, as it was written down once.
_GROWING = (
    *("batches", "checkpoints", "events", "leaves", "log_keys", "log_nodes", "request_audits"),
    *("tombstone_keys", "tombstones", "vault_keys"),
)
#: A request as it was asked for; whose drills run by themselves asks like a caller.
_ASKED = Rights(
    add="id model kind count reference ciphertext api_key_id idempotency_key body_digest subject_commitments "
    "reference_commitment key_file key_place voucher"
)
#: Columns of the lease: its holder, and the holder's report.
_LEASE = (
    "holder fencing held_since expires_at phase reason repair_progress device checks served_at serving_since "
    "failures failing_since home"
)
_DRILL = Rights(add="request_id model cohort trigger")
#: Rights to a lock table (`service.db.locks`): to share the lock, to take it exclusively, or both.
_SHARES, _TAKES, _SHARES_AND_TAKES = Rights(add=_ALL), Rights(remove=True), Rights(add=_ALL, remove=True)
#: Only `migrate` changes the schema and what is said of it, and an operator's commands make and revoke keys.
_READ_BY_BOTH = dict.fromkeys(("alembic_version", "api_keys", "service_settings", *DERIVED), _READ)

#: Those of a process of the api; no right on a table that is not named.
API: Mapping[str, Rights] = {
    **_READ_BY_BOTH,
    **dict.fromkeys(_GROWING, _READ),
    **dict.fromkeys(("decisions", "imports", "leases", "pointers", "recoveries", "versions"), _READ),
    **dict.fromkeys(("feed", "webhook_deliveries", "webhook_endpoints"), _READ),
    "drills": _DRILL,
    "lock_drills": _TAKES,
    "lock_intake": _SHARES,
    "lock_sessions": _TAKES,
    # A trigger sets the time.
    "log_checks": Rights(add="api_key_id size against_size", change="size against_size"),
    "outbox": Rights(add="request_id model"),
    "refused_requests": Rights(add="model api_key_id kind named reason"),
    "requests": _ASKED,
    "sessions": Rights(add="token_hash key_id", change="seen_at", remove=True),
    "used_salts": Rights(add=_ALL),
}

#: Those of the unlearner; no right on a table that is not named.
UNLEARNER: Mapping[str, Rights] = {
    **_READ_BY_BOTH,
    **dict.fromkeys(_GROWING, Rights(add=_ALL)),
    "decisions": Rights(change="event_id"),
    "drills": _DRILL,
    # What a move tells is added by its trigger; that one is late, by nobody's.
    "feed": Rights(add="request_id api_key_id milestone status due_at", change="place due_at"),
    "imports": Rights(change="status refusal finished_at"),
    "leases": Rights(add=_ALL, change=_LEASE),
    "lock_drills": _TAKES,
    "lock_feed": _TAKES,
    "lock_intake": _SHARES_AND_TAKES,
    "lock_log": _TAKES,
    "lock_totals": _TAKES,
    "log_checks": _READ,
    # Its rows are locked until the stream has them.
    "outbox": Rights(add="request_id model", change="created_at", remove=True),
    "pointers": Rights(add=_ALL, change="version fencing folder digest weights_sha256 moved_at"),
    "recoveries": Rights(add=_ALL, change="requests_failed"),
    "refused_requests": _READ,
    "requests": Rights(
        add=_ASKED.add,
        change="status swept_at taken_at batch_id applied_at completed_at failed_at guarantee repair explanation "
        "failure ciphertext key_file key_place already_deleted_by handled_at handled_by",
    ),
    "webhook_deliveries": Rights(
        add="endpoint_id event_id", change="attempts next_attempt_at delivered_at given_up_at answer", remove=True
    ),
    "webhook_endpoints": Rights(change="secret removed_at removal"),
    "versions": Rights(add=_ALL, change="finished_at durations_ms span_residual repair repair_version"),
}

#: What is done with the owner's rights when it is called.
FUNCTIONS = {
    API_ROLE: frozenset(
        {
            "request_cancel",
            "request_retry",
            "request_handle",
            "request_extend",
        }
    ),
    UNLEARNER_ROLE: frozenset({"audit_fold"}),
}
TABLES = {API_ROLE: API, UNLEARNER_ROLE: UNLEARNER}
