"""The receipt on paper: a page that needs no knowledge of models, and an annex with what was measured and signed."""

from projector.forgetting.status import RepairStatus
from service.audit.canonical import Document
from service.audit.checkpoint import read
from service.audit.receipt import fingerprint
from service.deletions.receipts import Receipt
from service.domain.figures import answers
from service.domain.formats import at_most, day, minute
from service.domain.guarantees import IN_PLAIN_WORDS
from service.domain.kinds import RequestKind
from service.domain.states import EventType, Guarantee
from service.papers.paper import Paper, moment, paper
from service.settings import Settings

#: What each event of a request is called.
_HAPPENED = {
    EventType.APPLIED: "Applied",
    EventType.REPAIRED: "Repaired",
    EventType.NOT_REPAIRED: "Not repaired",
    EventType.COMPLETED: "Completed",
    EventType.FAILED: "Failed",
    EventType.HANDLED: "Handled",
    EventType.EXTENDED: "Deadline extended",
}


def receipt_paper(receipt: Receipt, settings: Settings) -> Paper:
    """A receipt as a page to read and to print, which loads nothing."""
    document = receipt.document
    mark = fingerprint([entry["leaf"] for entry in document["entries"]])
    return paper(
        "receipt.html",
        settings,
        # A browser sends to no server what stands behind the hash sign.
        check=f"/dashboard/verify#{mark}",
        receipt=document,
        request=receipt.request,
        reference="not shown to this key" if receipt.reference_is_hidden else receipt.request.reference or "none given",
        happened=[(_HAPPENED[EventType(each["leaf"]["type"])], each["leaf"]["time"]) for each in document["entries"]],
        sentences=sentences(document["summary"], settings.organisation),
        annex=answers(document["summary"] | document["summary"]["figures"]),
        fingerprint=mark,
        tree=read(document["checkpoint"]),
    )


def sentences(summary: Document, organisation: str | None) -> list[str]:
    """What was asked, what was done and what holds since, for whoever has never seen a model."""
    what = RequestKind(summary["kind"]).rules.in_plain_words(summary["count"])
    asked = (
        f"On {day(moment(summary['received_at']))}, {organisation or 'the operator of this service'} was asked to "
        f"delete {what} from its machine learning model."
    )
    return [asked, *_done(summary)]


def _done(summary: Document) -> list[str]:
    if summary["status"] == EventType.FAILED:
        return _not_done(summary)
    if summary["applied_at"] is None:
        return ["There was nothing left to do: all of it had already been deleted.", summary["guarantee_in_words"]]
    left = f"Since {minute(moment(summary['applied_at']))}, no prediction of the model uses this data"
    if summary["completed_at"] is None:
        gone = f"{left}. It is being erased from the disk; a later copy of this receipt will say when that was done."
    else:
        gone = (
            f"{left}. By {minute(moment(summary['completed_at']))} it had been erased from the disk, with every "
            "earlier version of the model."
        )
    if summary["repair"] == RepairStatus.PENDING:
        return [gone, "The model is still being corrected; a later copy of this receipt will state the result."]
    holds = IN_PLAIN_WORDS[Guarantee(summary["guarantee"])]
    # Of weights published with noise, the log has no more than a commitment to it.
    bound = summary["figures"].get("distance_bound_after_relative")
    if bound is not None and summary["guarantee"] == Guarantee.RETRAINED:
        holds = f"{holds} The difference is at most {at_most(bound)} of the size of its weights."
    return [gone, holds]


def _not_done(summary: Document) -> list[str]:
    failed = f"This could not be done on {minute(moment(summary['failed_at']))}: nothing was deleted for this request."
    # What operators can do about it stands behind it, and in the annex.
    reason, _, _ = summary["failure"].partition(". ")
    told = [failed, f"The reason: {reason.rstrip('.')}."]
    if summary["handled_at"] is None:
        return [*told, "The request is still open."]
    handled = day(moment(summary["handled_at"]))
    if summary["note"] is not None:
        return [*told, f"The request was settled in another way on {handled}: {summary['note']}"]
    by = f"the later request {summary['handled_by']}, whose receipt says what was done"
    return [*told, f"By {handled}, all of it had been deleted for {by if summary['handled_by'] else 'later requests'}."]
