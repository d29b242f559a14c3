"""The public page for checking a receipt, as used by a person with a printed one."""

import json
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from playwright.sync_api import Page, expect

from tests.support.clients.visits import LOOKS, Visit, judge
from tests.support.everyday import every_case
from tests.support.processes.lethe_process import LetheProcess

pytestmark = [pytest.mark.ci, pytest.mark.needs("chromium")]
Open = Callable[..., Visit]


@pytest.fixture(scope="module")
def receipt(lethe: LetheProcess) -> bytes:
    """Return the receipt file of a completed request."""
    with lethe.client() as client:
        [found] = [one for one in client.deletions() if one.reference == "DSR-1"]
        return client.receipt(str(found.id))


def check(page: Page, text: str) -> None:
    if not page.get_by_label("Text of the receipt file").is_visible():
        page.get_by_text("Or paste its text").click()
    page.get_by_label("Text of the receipt file").fill(text)
    page.get_by_role("button", name="Check the receipt").click()


def test_whoever_holds_a_receipt_checks_it_without_an_account_and_it_stays_with_them(
    visit: Open, receipt: bytes
) -> None:
    window = visit()
    page = window.open("/verify")
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    page.get_by_label("The receipt file that came").set_input_files(
        {"name": "receipt.json", "mimeType": "application/json", "buffer": receipt}
    )
    page.get_by_role("button", name="Check the receipt").click()
    expect(page.locator("#outcome")).to_contain_text("Genuine: this receipt is in the signed log")
    expect(page.locator("#facts")).to_contain_text("2 records")
    expect(page.locator("#facts")).to_contain_text("The model was then corrected.")
    expect(page.locator("#checks li.bad, #checks li.warn")).to_have_count(0)
    # The browser requests the icon at any time.
    assert [url for url in sent if "/dashboard/static/" not in url] == []
    # Even a script injected into the page could not send it.
    assert page.evaluate("fetch('/dashboard/log').then(() => 'sent', () => 'refused')") == "refused"
    assert all("Content Security Policy" in text or "Refused to connect" in text for text in window.complaints)
    window.complaints.clear()


def test_the_code_on_the_paper_leads_to_its_own_receipt_alone(visit: Open, receipt: bytes) -> None:
    window = visit()
    window.sign_in()
    page = window.open(f"/requests/{orjson.loads(receipt)['request_id']}/receipt")
    mark = page.locator("code.fingerprint").inner_text().replace(" ", "")
    expect(page.get_by_text("/dashboard/verify", exact=False)).to_be_visible()
    for given, words in (
        (mark, "It is the receipt on your paper"),
        (mark[::-1], "It is not the receipt on your paper"),
    ):
        page.goto("about:blank")
        page = window.open(f"/verify#{given}")
        check(page, receipt.decode())
        expect(page.locator("#checks li").filter(has_text=words)).to_be_visible()


def _figure(document: Any) -> None:
    document["entries"][0]["leaf"]["details"]["rank_after"] += 1


def _summary(document: Any) -> None:
    document["summary"]["completed_at"] = document["summary"]["applied_at"]


def _words(document: Any) -> None:
    document["summary"]["guarantee_in_words"] += " It is certified by nobody."


def _added(document: Any) -> None:
    document["summary"]["certified_by"] = "An authority"


def _member(document: Any) -> None:
    document["note"] = "All of it is true."


def _size(document: Any) -> None:
    origin, size, *rest = document["checkpoint"].split("\n")
    document["checkpoint"] = "\n".join([origin, str(int(size) + 1), *rest])


def _order(document: Any) -> None:
    document["entries"].reverse()


def _request(document: Any) -> None:
    document["request_id"] = document["request_id"][::-1]


def _key(document: Any) -> None:
    origin, rest = document["checkpoint"].split("\n", 1)
    document["checkpoint"] = rest.join([f"{origin}0\n", ""]).replace(f"— {origin} ", f"— {origin}0 ")


FORGERIES = (_figure, _summary, _words, _added, _member, _size, _order, _request, _key)


@pytest.fixture
def window(visit: Open) -> Visit:
    return visit()


@every_case("forge", FORGERIES)
def test_a_receipt_that_was_changed_is_not_genuine(window: Visit, receipt: bytes, forge: Callable[[Any], None]) -> None:
    document = orjson.loads(receipt)
    forge(document)
    page = window.open("/verify")
    check(page, json.dumps(document))
    expect(page.locator("#outcome.bad")).to_contain_text("Not genuine")
    expect(page.locator("#checks li.bad")).not_to_have_count(0)
    expect(page.locator("#result")).to_be_hidden()


def test_what_is_no_receipt_is_said_to_be_none(visit: Open) -> None:
    page = visit().open("/verify")
    for text in ("{", "[]", "null", '{"format": "lethe-receipt/1"}', '{"format": "lethe-receipt/1", "entries": [{}]}'):
        check(page, text)
        expect(page.locator("#outcome.bad")).to_contain_text("This is not a receipt of Lethe")
    check(page, " ")
    expect(page.locator("#outcome.warn")).to_contain_text("Choose the receipt file first")


def test_a_browser_without_the_signature_scheme_says_that_it_is_not_settled(visit: Open, receipt: bytes) -> None:
    window = visit()
    window.page.add_init_script(
        "crypto.subtle.importKey = () => Promise.reject(new DOMException('Unknown algorithm', 'NotSupportedError'))"
    )
    page = window.open("/verify")
    check(page, receipt.decode())
    expect(page.locator("#outcome.warn")).to_contain_text("Not settled")
    expect(page.locator("#checks li.warn")).to_contain_text("This browser cannot check Ed25519 signatures")


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_the_page_has_no_serious_fault(visit: Open, axe: str, receipt: bytes, width: int, scheme: str) -> None:
    page = visit(width, scheme).open("/verify")
    judge(page, axe)
    check(page, receipt.decode())
    page.locator("#outcome.good").wait_for()
    judge(page, axe)
