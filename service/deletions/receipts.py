"""The receipt of a deletion: evidence that can be checked without trusting Lethe, as a document or as a page."""

import asyncio
import base64
import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import jinja2

from service.audit.canonical import Document, parse_canonical
from service.audit.checkpoint import read, signers_of
from service.audit.receipt import Entry, receipt
from service.audit.unrequested import OF_THE_MODEL
from service.db.engine import Connection, Engine
from service.db.transactions import transaction
from service.deletions.lookup import visible_to
from service.deletions.requests import RequestRepository
from service.domain.figures import RECEIPT
from service.domain.kinds import RequestKind
from service.domain.records import ApiKey
from service.domain.states import RequestStatus
from service.errors import Conflict, NotFound, Unavailable
from service.evidence.checkpoints import CheckpointRepository
from service.evidence.log import LogRepository, StoredLeaf

_TEMPLATES = Path(__file__).parent / "templates"
#: Seconds between looks for the signature of a new event, which is made at once.
_WAITS_S = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 0.0)
_READY = (RequestStatus.APPLIED, RequestStatus.COMPLETED)


@dataclass(frozen=True)
class ReceiptPage:
    """A receipt as HTML, and the Content-Security-Policy under which it is shown."""

    html: str
    policy: str


async def receipt_of(engine: Engine, request_id: UUID, caller: ApiKey) -> Document:
    """The receipt of a request that `caller` may see.

    Raises:
        NotFound: there is no such request, as far as the caller may know.
        Conflict: it is not applied, or never will be.
        Unavailable: its newest event is not signed yet, or the database does not answer.
    """
    for wait_s in _WAITS_S:
        async with transaction(engine) as connection:
            await _require_ready(connection, request_id, caller)
            document = await _receipt(connection, request_id)
        if document is not None:
            return document
        await asyncio.sleep(wait_s)
    raise Unavailable("The newest event of this request is not signed yet.", "Try again in a moment.")


def receipt_page(document: Document) -> ReceiptPage:
    """A receipt as a page to read and to print, which loads nothing."""
    style = _style()
    tree = read(document["checkpoint"])
    rules = RequestKind(document["summary"]["kind"]).rules
    html = _template().render(receipt=document, rules=rules, style=style, figures=RECEIPT, tree=tree)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return ReceiptPage(html, policy)


async def _require_ready(connection: Connection, request_id: UUID, caller: ApiKey) -> None:
    found = await RequestRepository(connection).get(request_id, visible_to(caller))
    if found is None:
        raise NotFound(
            "There is no such deletion request, as far as this key may know.",
            "Check the id; a key without audit:read sees only what it asked for itself.",
        )
    status = found[0].status
    if status not in _READY:
        waiting = status is RequestStatus.QUEUED
        raise Conflict(
            f"The request is {status}: there is no receipt of it.",
            "Ask again once it is applied." if waiting else "Nothing was deleted for it.",
        )


async def _receipt(connection: Connection, request_id: UUID) -> Document | None:
    """The receipt; None while the newest event of the request is not signed yet."""
    log, checkpoints = LogRepository(connection), CheckpointRepository(connection)
    note = await checkpoints.require()
    size = read(note).size
    leaves = await log.of_request(request_id)
    if not leaves or leaves[-1].index >= size:
        return None

    async def proven(leaf: StoredLeaf) -> Entry:
        return Entry(parse_canonical(leaf.data), await log.inclusion(leaf.index, size))

    entries = [await proven(leaf) for leaf in leaves]
    model = entries[-1].leaf["request"]["model"]
    since = [await proven(leaf) for leaf in await model_events_after(log, model, leaves[0].index) if leaf.index < size]
    signers = signers_of(note)
    return receipt(entries, note, [key for key in (await checkpoints.keys()).values() if key.id in signers], since)


async def model_events_after(log: LogRepository, model: str, after: int) -> list[StoredLeaf]:
    """The leaves, in order, of what befell a model after the leaf `after` and no request asked for."""
    return [leaf for leaf in reversed(await log.unrequested(after=after)) if _is_of(model, leaf)]


def _is_of(model: str, leaf: StoredLeaf) -> bool:
    event = parse_canonical(leaf.data)
    return event["type"] in OF_THE_MODEL and event["details"]["model"] == model


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    return environment.get_template("receipt.html")


@functools.cache
def _style() -> str:
    return (_TEMPLATES / "receipt.css").read_text()
