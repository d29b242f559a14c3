"""Lists of deletion requests: a page that matches filters, or the requests that deleted given nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from service.access.cursors import Cursors
from service.db.transactions import transaction
from service.domain.kinds import Names, Target, parts_of
from service.domain.records import ApiKey
from service.domain.scopes import Scope
from service.errors import BodyTooLarge
from service.predictions.reader import offload
from service.reports.queries import AuditEntry, AuditFilters
from service.reports.schemas import PagedFilters, RecordFilters
from service.reports.search import search
from service.requests.answers import DeletionAnswer, FoundDeletion, SearchAnswer, deletion_answer
from service.requests.deletable import Deletions


def visible_to(caller: ApiKey) -> UUID | None:
    """Return the key whose requests `caller` may see; None if it may see every key's."""
    return None if reads_audit(caller) else caller.id


def reads_audit(caller: ApiKey) -> bool:
    """Return whether `caller` may see references of completed requests, and figures of weights published with noise."""
    return Scope.AUDIT_READ in caller.scopes


def audit_filters(filters: RecordFilters, caller: ApiKey) -> AuditFilters:
    """Return the filters, limited to the requests that `caller` may see."""
    return AuditFilters(
        status=filters.status,
        kind=filters.kind,
        guarantee=filters.guarantee,
        repair=filters.repair,
        open=filters.open,
        late=filters.late,
        held=filters.held,
        since=filters.since,
        until=filters.until,
        thresholds=filters.thresholds(),
        api_key_id=visible_to(caller),
    )


async def found_page(
    deletions: Deletions, asked: PagedFilters, filters: AuditFilters, caller: ApiKey
) -> tuple[list[AuditEntry], str | None]:
    """Return one page and the cursor of the next. Raises MalformedCursor, Unavailable."""
    query = asked.model_dump_json(exclude={"cursor", "limit"})
    cursors = Cursors(deletions.keyring.cursor_key, f"{visible_to(caller)} {query}")
    async with transaction(deletions.engine) as connection:
        page = await search(connection, filters, cursors.read(asked.cursor), asked.limit)
    return page.entries, cursors.write(page.next_cursor)


async def found_by_node(
    deletions: Deletions, named: Sequence[str], filters: AuditFilters, caller: ApiKey
) -> SearchAnswer:
    """Return the requests that deleted the given nodes or their features. Raises BodyTooLarge, Unavailable.

    If a restored older database lacks the request of a deletion, the deletion is reported without one.
    """
    limit = deletions.most_targets
    if len(named) > limit:
        raise BodyTooLarge(
            f"{len(named)} nodes exceed the limit of {limit} per search.",
            "Search for them in several requests.",
            max_nodes=limit,
        )
    deleted_by = [await deletions.tombstones.find(part, named) for part in parts_of(Names.NODES)]
    ids = {request_id for by_node in deleted_by for request_id in by_node.values() if request_id is not None}
    async with transaction(deletions.engine) as connection:
        page = await search(connection, replace(filters, ids=ids), None, len(ids))
    return await offload(len(named), lambda: _answer(named, deleted_by, page.entries, caller))


def _answer(
    named: Sequence[str],
    deleted_by: Sequence[Mapping[Target, UUID | None]],
    entries: Sequence[AuditEntry],
    caller: ApiKey,
) -> SearchAnswer:
    answers: dict[UUID | None, DeletionAnswer | None] = {
        entry.request.id: deletion_answer(entry.request, entry.audit, reads_audit=reads_audit(caller))
        for entry in entries
    }
    nodes = list(dict.fromkeys(named))
    # Nobody knows who sent requests that are missing from the database. Only callers who may see every key's requests
    # learn of them.
    shown = answers if visible_to(caller) else {**answers, None: None}
    found = [
        FoundDeletion(node=node, deletion=shown[by_node[node]])
        for node in nodes
        for by_node in deleted_by
        if node in by_node and by_node[node] in shown
    ]
    known = {one.node for one in found}
    not_found = [node for node in nodes if node not in known]
    return SearchAnswer(found=found, not_found=not_found, deletions=None, next_cursor=None)
