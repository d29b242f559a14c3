"""The receipt as read by a deleted person."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from service.domain.figures import FIGURES
from service.domain.states import RequestStatus
from service.log.receipt import FORMAT, fingerprint, summary
from service.reports.receipts import Receipt, receipt_paper, sentences
from service.settings import Settings
from tests.support.service.records import queued_request

ID = "0197f3c2-6f6e-7c1a-9d55-0d7a5d3b2c11"
CHECKPOINT = (
    "lethe/2c26b46b68ffc68f\n12\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\n"
    "— lethe/2c26b46b68ffc68f "
    "Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=\n"
)

RECEIVED = datetime(2026, 3, 2, 9, 15, tzinfo=UTC)
REQUEST = queued_request(RECEIVED, id=UUID(ID), model="cora", status=RequestStatus.COMPLETED, reference="DSR-17")


def leaf(event: str, time: str, details: dict[str, Any] | None = None, **request: Any) -> dict[str, Any]:
    asked = {"model": "cora", "kind": "node", "count": 1, "received_at": "2026-03-02T09:15:04.120000Z"}
    done = {"guarantee": None, "repair": None, "explanation": None, "failure": None, "already_deleted_by": None}
    return {"type": event, "time": time, "details": details or {}, "request": asked | done | request, "index": 3}


def completed(**request: Any) -> list[dict[str, Any]]:
    retrained = {"guarantee": "retrained", "repair": "converged"} | request
    figures = {"injected_norm_before": 0.25, "distance_bound_after_relative": 1e-10, "weights_sha256_after": "ab" * 32}
    return [
        leaf("applied", "2026-03-02T09:15:04.310000Z", figures, **retrained),
        leaf("completed", "2026-03-03T10:00:00.900000Z", figures, **retrained),
    ]


def test_it_says_in_three_sentences_what_was_asked_what_was_done_and_what_holds() -> None:
    assert sentences(summary(completed()), "Beispiel GmbH") == [
        "On 2 March 2026, Beispiel GmbH was asked to delete one record from its machine learning model.",
        "Since 2 March 2026, 09:15 UTC, no prediction of the model uses this data. By 3 March 2026, 10:00 UTC it had "
        "been erased from the disk, with every earlier version of the model.",
        "The model was then corrected. It is now the one that training without this data would have given, up to a "
        "proven difference. The difference is at most 0.1 parts per billion (1.00 × 10⁻¹⁰) of the size of its weights.",
    ]


@pytest.mark.parametrize(
    ("kind", "count", "words"),
    [
        ("node", 1200, "delete 1,200 records from"),
        ("features", 1, "delete the stored details of one record (not its label and links) from"),
        ("edge", 2, "delete 2 links between records from"),
    ],
)
def test_it_names_what_was_asked_for_without_the_words_of_graphs(kind: str, count: int, words: str) -> None:
    assert words in sentences(summary(completed(kind=kind, count=count)), None)[0]


def test_it_claims_no_more_than_holds() -> None:
    at = "2026-03-02T09:15:04.310000Z"
    weaker = {"guarantee": "span", "repair": "none"}
    assert "may still carry" in sentences(summary(completed(**weaker)), None)[2]
    under_way = sentences(summary([leaf("applied", at, guarantee="span", repair="pending")]), None)
    assert "is being erased from the disk" in under_way[1]
    assert "still being corrected" in under_way[2]
    nothing = sentences(summary([leaf("completed", at, already_deleted_by=ID)]), None)
    assert nothing[1:] == [
        "There was nothing left to do: all of it had already been deleted.",
        "Another request has deleted everything that this one names. Its receipt says what was done.",
    ]
    beaten = sentences(summary([leaf("completed", at, already_deleted_by=ID, kind="addition")]), None)
    assert beaten[1] == "Nothing was added or changed: all of it had been deleted on request."


def test_of_one_that_failed_it_says_why_and_what_became_of_it() -> None:
    at, later = "2026-03-02T09:15:04.310000Z", "2026-03-05T10:00:00Z"
    failed = leaf("failed", at, failure="Its key is lost. Restore it from a backup.")

    def statements(*leaves: dict[str, Any]) -> list[str]:
        return sentences(summary([failed, *leaves]), None)[1:]

    done = "This could not be done on 2 March 2026, 09:15 UTC: nothing was deleted for this request."
    why = "The reason: Its key is lost."
    extended = leaf("extended", later, {"reason": "Many at once."}, failure="Its key is lost.")
    assert statements() == statements(extended) == [done, why, "The request is still open."]
    noted = leaf("handled", later, {"reason": "Deleted by hand."}, failure="Its key is lost.")
    assert statements(noted) == [done, why, "The request was settled in another way on 5 March 2026: Deleted by hand."]
    by = leaf("handled", later, {"deleted_by": [ID]}, failure="Its key is lost.")
    assert statements(by)[2] == (
        f"By 5 March 2026, all of it had been deleted for the later request {ID}, whose receipt says what was done."
    )


def test_a_receipt_shows_from_when_to_when_it_was_held_and_why() -> None:
    begun, ended = "2026-03-02T09:16:00.000000Z", "2026-03-02T10:00:00.000000Z"
    held = leaf("held", begun, {"decided_at": begun, "reason": "Needed in a lawsuit.", "api_key": ID})
    released = leaf("released", ended, {"decided_at": ended, "due_at": ended, "api_key": ID})
    assert summary([held, released, *completed()])["held"] == [
        {"from": begun, "until": ended, "reason": "Needed in a lawsuit."}
    ]
    assert summary([held])["held"][0]["until"] is None
    assert "held" not in summary(completed())


def test_its_figures_stand_in_the_annex_alone_under_the_names_of_the_dashboard() -> None:
    leaves = completed()
    document = {
        "format": FORMAT,
        "request_id": ID,
        "summary": summary(leaves),
        "entries": [{"leaf": each, "inclusion_proof": []} for each in leaves],
        "since": [],
        "checkpoint": CHECKPOINT,
        "public_keys": ["lethe/2c26b46b68ffc68f+033de0ae+Ac4zjqAGeLXHbjg3r4eNVFCSZ1dPLrHh2iDPVlGJWJUb"],
    }
    settings = Settings(organisation="Beispiel <GmbH>", public_url="https://lethe.example/")
    page = receipt_paper(Receipt(document, REQUEST, reference_is_hidden=False), settings).html
    first, _, annexed = page.partition('class="annex"')
    shown = ["injected_norm_before", "distance_bound_after_relative", "weights_sha256_after"]
    for label in (FIGURES[name].label for name in shown):
        assert label in annexed
        assert label not in first
    assert "0.1 ppb<br><small>1.00 × 10⁻¹⁰</small>" in annexed
    assert "Beispiel &lt;GmbH&gt;" in first
    assert "DSR-17" in first
    assert "1 April 2026" in first
    # To the day, and in the annex to the second.
    assert ".310000" not in page
    assert "https://lethe.example/dashboard/verify</code>" in first
    # A deleted person needs no shell.
    assert "./lethe" not in first
    assert "cora" not in first
    assert fingerprint(leaves)[:8] in first
    hidden = receipt_paper(Receipt(document, replace(REQUEST, reference=None), reference_is_hidden=True), settings)
    assert "not shown to this key" in hidden.html
