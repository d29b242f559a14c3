"""The dashboard in a real browser, as used by a person responsible for deletions."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from playwright.sync_api import Browser, Route, expect

from service.log.merkle import Range, consistency_ranges, inclusion_ranges, leaf_hash, root
from tests.support.clients.visits import LOOKS, Visit, held_log, judge
from tests.support.processes.lethe_process import KEY, LetheProcess

pytestmark = [pytest.mark.ci, pytest.mark.needs("chromium")]

Open = Callable[..., Visit]


def test_a_visitor_signs_in_filters_and_opens_a_request(visit: Open) -> None:
    page = visit().sign_in("/requests?kind=node")
    # The requested page, not the overview.
    expect(page).to_have_url(re.compile(r"/dashboard/requests\?kind=node$"))
    expect(page.get_by_role("link", name=re.compile(r"^[0-9a-f]{8}$")).first).to_be_visible()
    page.get_by_text("Filter", exact=True).click()
    page.get_by_label("Status").select_option("failed")
    expect(page.get_by_text("No request matches these filters.")).to_be_visible()
    expect(page).to_have_url(re.compile(r"/requests\?status=failed&kind=node$"))
    page.get_by_label("Status").select_option("completed")
    chips = page.get_by_label("Applied filters")
    expect(chips.get_by_role("link", name="Status: Completed")).to_be_visible()
    chips.get_by_role("link", name="Kind: Nodes").click()
    expect(page).to_have_url(re.compile(r"/requests\?status=completed$"))
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV", exact=True).click()
    header, *exported = download.value.path().read_text().splitlines()
    assert header.startswith("id,model,status,kind,")
    assert len(exported) >= 3
    assert all(",completed,node," in line for line in exported)
    page.get_by_role("row").filter(has_text="DSR-1").get_by_role("link").click()
    expect(page.get_by_text("2 nodes", exact=True)).to_be_visible()
    expect(page.get_by_role("heading", name="Measurements")).to_be_visible()
    # A repair beyond its budget ends after the completion.
    expect(page.locator(".timeline li.done")).to_have_count(4)
    for step in ("Received", "Applied", "Repaired", "Completed"):
        expect(page.locator(".timeline li.done").filter(has_text=re.compile(f"^{step}"))).to_have_count(1)
    page.get_by_role("link", name="Receipt, to read").click()
    expect(page.get_by_role("heading", name="Receipt of a deletion")).to_be_visible()


def test_a_request_goes_from_queued_to_completed_while_one_looks(
    visit: Open, lethe: LetheProcess, dashboard_database: str
) -> None:
    window = visit()
    page = window.sign_in("/requests")
    with held_log(dashboard_database) as release:
        with lethe.client() as client:
            accepted = client.request_deletion(["10"], reference="DSR-watched")
        row = page.get_by_role("row").filter(has_text="DSR-watched")
        expect(row).to_contain_text("Queued")
        expect(row).to_contain_text("29 d 23 h left")
        row.get_by_role("link").click()
        expect(page.get_by_role("status").filter(has_text="Queued")).to_be_visible()
        expect(page.locator("code").filter(has_text=str(accepted.id))).to_be_visible()
        loads = window.loads
        release()
        expect(page.get_by_role("status").filter(has_text="Completed")).to_be_visible()
    expect(page.locator(".timeline li.done")).to_have_count(4)
    expect(page.get_by_role("heading", name="Measurements")).to_be_visible()
    assert window.loads == loads
    # Finished, so it stops polling.
    expect(page.locator("#request")).not_to_have_attribute("hx-get", re.compile("."))


def test_the_browser_verifies_the_evidence_and_finds_what_was_changed(visit: Open) -> None:
    page = visit().sign_in("/requests?status=completed")
    page.get_by_role("row").filter(has_text="DSR-0").get_by_role("link").click()
    page.get_by_role("button", name="Verify in this browser").click()
    expect(page.locator("#outcome")).to_have_text("Verified: all 3 events of this request are in the signed log.")
    expect(page.locator("#checks li.good")).to_have_count(5)

    def forge(change: Callable[[Any], None]) -> None:
        def answer(route: Route) -> None:
            response = route.fetch()
            evidence = response.json()
            change(evidence)
            route.fulfill(response=response, json=evidence)

        page.route("**/proof", answer)
        page.get_by_role("button", name="Verify in this browser").click()

    def more_was_measured(evidence: Any) -> None:
        leaf = evidence["leaves"][1]
        leaf["data"] = leaf["data"].replace('"directions_removed":0', '"directions_removed":1')

    def another_checkpoint(evidence: Any) -> None:
        origin, size, *rest = evidence["checkpoint"].split("\n")
        evidence["checkpoint"] = "\n".join([origin, str(int(size) + 1), *rest])

    forge(more_was_measured)
    expect(page.locator("#outcome")).to_have_class(re.compile("bad"))
    expect(page.locator("#checks li.bad")).to_have_text([re.compile(r"Leaf \d+ .*does not lead to the signed root")])
    forge(another_checkpoint)
    expect(page.locator("#checks li.bad").last).to_contain_text("the checkpoint was changed or forged")


def test_the_log_is_compared_with_a_checkpoint_that_was_kept(visit: Open, lethe: LetheProcess) -> None:
    window = visit()
    page = window.sign_in("/log")
    kept = page.locator("#note").inner_text()
    page.get_by_role("button", name="Check the signature").click()
    expect(page.locator("#check-outcome")).to_have_text("The signature of this checkpoint is good.")
    page.get_by_label("An earlier checkpoint").fill(kept)
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#compare-checks li.warn")).to_contain_text("the log was compared with itself")
    expect(page.locator("#compare-outcome")).to_contain_text("This proves nothing yet.")
    window.open("")
    expect(page.get_by_text("nobody has reported an independent check yet")).to_be_visible()
    window.open("/log")
    lethe.delete(["20"])
    size = int(kept.split("\n")[1])
    # The log is signed right after it has grown.
    while int(page.locator("#note").inner_text().split("\n")[1]) < size + 3:
        page.reload()
    page.get_by_label("An earlier checkpoint").fill(kept)
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#compare-outcome")).to_have_text("This log only grew since the checkpoint you kept.")
    window.open("")
    expect(page.get_by_text("Recorded, independently checked, and forgotten within a proven bound.")).to_be_visible()
    expect(page.get_by_text(re.compile(rf"by admin.*, from {size} to \d+ events"))).to_be_visible()
    window.open("/log")
    other = kept.replace(f"\n{size}\n", f"\n{size - 1}\n")
    page.get_by_label("An earlier checkpoint").fill(other)
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#compare-outcome")).to_contain_text("contradicts the checkpoint you kept")

    def compare_while_the_server_answers(status: int) -> None:
        page.route("**/log/checks", lambda route: route.fulfill(status=status))
        page.get_by_label("An earlier checkpoint").fill(kept)
        page.get_by_role("button", name="Compare").click()

    # A server that does not recognise its signature, and one that cannot answer.
    compare_while_the_server_answers(409)
    expect(page.locator("#compare-checks li.bad")).to_contain_text("denies the checkpoint")
    expect(page.locator("#compare-outcome")).to_contain_text("contradicts a checkpoint that it has signed")
    compare_while_the_server_answers(503)
    expect(page.locator("#compare-checks li.warn")).to_contain_text("the server answered 503")
    expect(page.locator("#compare-outcome")).to_have_text("This log only grew since the checkpoint you kept.")
    assert [text for text in window.complaints if "409" not in text and "503" not in text] == []
    window.complaints.clear()


def test_what_no_request_asked_for_is_shown_with_the_log_and_with_requests_before_it(visit: Open) -> None:
    window = visit()
    page = window.sign_in("/log")
    key, imported = page.locator(".events li").all_inner_texts()
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d, leaf \d+: from here on checkpoints are signed with key 2", key)
    assert "a newly trained model replaced" in imported
    page = window.open("/requests?status=completed")
    page.get_by_role("row").filter(has_text="DSR-1").get_by_role("link").click()
    # A key changes no weights.
    changed = re.compile("version 3 to 4; .* removed before it was served: 4 nodes")
    expect(page.locator(".events li")).to_have_text([changed])


def test_the_browser_checks_every_proof_of_trees_of_every_shape(visit: Open) -> None:
    page = visit().sign_in("/log")
    leaves = [leaf_hash(bytes([number])) for number in range(18)]
    sizes = range(1, len(leaves) + 1)
    inclusions = [
        {"index": index, "size": size, "leaf": leaves[index].hex(), "root": root(leaves[:size]).hex(), "proof": proof}
        for size in sizes
        for index in range(size)
        for proof in [hashes(leaves, inclusion_ranges(index, size))]
    ]
    growths = [
        {"old": old, "size": size, "was": root(leaves[:old]).hex(), "root": root(leaves[:size]).hex(), "proof": proof}
        for size in sizes
        for old in range(1, size + 1)
        for proof in [hashes(leaves, consistency_ranges(old, size))]
    ]
    checked = page.evaluate(_CHECK_PROOFS, {"inclusions": inclusions, "growths": growths})
    assert checked["good"] == len(inclusions) + len(growths)
    assert checked["forged"] == 0


#: Counts the valid proofs, and those still valid with one hash changed, missing or added.
_CHECK_PROOFS = """async ({inclusions, growths}) => {
  const {rootByInclusion, isConsistent, fromHex, same} = await import("/dashboard/static/merkle.js");
  const included = async (one, proof) => {
    const found = await rootByInclusion(one.index, one.size, fromHex(one.leaf), proof);
    return found !== null && same(found, fromHex(one.root));
  };
  const grown = (one, proof) => isConsistent(one.old, one.size, fromHex(one.was), fromHex(one.root), proof);
  const counts = {good: 0, forged: 0};
  for (const [cases, holds] of [[inclusions, included], [growths, grown]]) {
    for (const one of cases) {
      const proof = one.proof.map(fromHex);
      counts.good += await holds(one, proof);
      const forgeries = [[...proof, new Uint8Array(32)]];
      proof.forEach((hash, at) => {
        forgeries.push(proof.with(at, hash.with(31, hash[31] ^ 1)), proof.toSpliced(at, 1));
      });
      for (const forgery of forgeries) counts.forged += await holds(one, forgery);
    }
  }
  return counts;
}"""


def test_the_overview_shows_what_was_done(visit: Open) -> None:
    window = visit()
    page = window.sign_in()
    expect(page.get_by_text("Nothing is open.")).to_be_visible()
    expect(
        page.get_by_text(re.compile(r"(\d+) of \1 deletions with a proven bound, within .* parts per billion"))
    ).to_be_visible()
    expect(page.get_by_text(re.compile(r"(\d+) of \1 events signed"))).to_be_visible()
    charts = page.locator("#charts[data-drawn]")
    expect(charts.get_by_role("img")).to_have_count(2)
    page.get_by_role("link", name="90 days").click()
    expect(page).to_have_url(re.compile(r"\?period=90d$"))
    expect(charts.get_by_role("img")).to_have_count(2)
    # Only the last day had events, so it is drawn by the hour.
    drawn = page.evaluate("JSON.parse(document.querySelector('[data-charts]').dataset.charts)")
    assert drawn["step"] == "hour"
    assert drawn["start"][-1] - drawn["start"][0] < 2 * 86_400
    page = window.open("/model")
    expect(charts.get_by_role("img")).to_have_count(4)
    norms = page.locator("figure").filter(has_text="Weight on these nodes")
    norms.get_by_text("As a table").click()
    expect(norms.get_by_role("link").first).to_have_attribute("href", re.compile("/dashboard/requests/"))


def test_without_a_script_there_are_tables_and_lists_that_can_be_sorted(lethe: LetheProcess, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{lethe.url}/dashboard")
    page.get_by_label("API key").fill(KEY)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("region", name="Requests as a table").get_by_role("row")).not_to_have_count(0)
    expect(page.get_by_text("Loading")).to_have_count(0)
    page.goto(f"{lethe.url}/dashboard/requests?drills=all")
    page.get_by_text("Filter", exact=True).click()
    page.get_by_label("Order").select_option("Oldest first")
    page.get_by_role("button", name="Apply").click()
    expect(page.locator("#results tbody tr").first).to_contain_text("DSR-0")
    expect(page.get_by_text(re.compile(r"^\d+ requests$"))).to_be_visible()
    page.goto(f"{lethe.url}/dashboard/requests?drills=yes&open=yes")
    expect(page.get_by_text("No request matches these filters.")).to_be_visible()
    context.close()


def test_a_report_is_handed_out_whose_code_leads_to_the_check_of_its_checkpoint(visit: Open) -> None:
    window = visit()
    page = window.sign_in()
    # The newest month with requests is preselected.
    expect(page.get_by_label("the report").locator("option:checked")).to_have_text(re.compile(", so far$"))
    page.get_by_role("button", name="Show the report").click()
    expect(page.get_by_role("heading", name="Requests in")).to_be_visible()
    root = page.locator("code.fingerprint").inner_text().replace(" ", "")
    size = page.locator("pre").first.inner_text().split("\n")[1]
    page = window.open(f"/log?size={size}&root={root}")
    # Nothing was logged since the report.
    expect(page.locator("#compare-outcome")).to_contain_text("This proves nothing yet.")
    page = window.open(f"/log?size={size}&root={root[::-1]}")
    expect(page.locator("#compare-outcome")).to_contain_text("contradicts")


def test_a_slash_leads_to_the_search_wherever_one_is(visit: Open) -> None:
    window = visit()
    page = window.sign_in("/log")
    page.keyboard.press("/")
    expect(page.get_by_label("Find by reference")).to_be_focused()
    page.keyboard.type("sr-0")
    # Within a field it is a letter.
    page.keyboard.press("/")
    expect(page.get_by_label("Find by reference")).to_have_value("sr-0/")
    page.keyboard.press("Backspace")
    page.keyboard.press("Enter")
    expect(page.get_by_text("1 request found")).to_be_visible()
    page.locator("h1").click()
    page.keyboard.press("/")
    expect(page.get_by_label("Part of the reference")).to_be_focused()


@pytest.mark.parametrize("width", [1400, 400])
def test_no_column_is_cut_off_and_on_a_phone_a_request_is_two_lines(visit: Open, width: int) -> None:
    page = visit(width).sign_in("/requests")
    page.locator("#results tbody a").first.wait_for()
    shown = page.evaluate(
        "Array.from(document.querySelectorAll('.scroll'), (one) => one.scrollWidth <= one.clientWidth)"
    )
    assert shown
    assert all(shown)
    if width == 400:
        heights = page.evaluate("Array.from(document.querySelectorAll('#results tbody tr'), (row) => row.offsetHeight)")
        assert max(heights) < 80


def test_every_page_can_be_used_with_the_keyboard_alone(visit: Open) -> None:
    page = visit().open()
    expect(page.get_by_label("API key")).to_be_focused()
    page.keyboard.type("the-first-key")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Requests", exact=True)).to_be_visible()
    page.locator("#results tbody a").first.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Evidence")).to_be_visible()


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_no_page_has_a_serious_fault_for_whom_it_is_harder(visit: Open, axe: str, width: int, scheme: str) -> None:
    window = visit(width, scheme)
    judge(window.open("/login"), axe)
    page = window.sign_in()
    page.locator("#charts[data-drawn]").wait_for()
    page.locator("figure summary").first.click()
    judge(page, axe)
    page.get_by_text("About late requests").locator("..").click()
    judge(page, axe)
    judge(window.open("/requests?status=completed"), axe)
    page.get_by_text("Filter", exact=True).click()
    judge(page, axe)
    page.locator("#results tbody a").first.click()
    page.get_by_role("button", name="Verify in this browser").click()
    page.locator("#outcome:not(:empty)").wait_for()
    judge(page, axe)
    judge(window.open("/log"), axe)
    judge(window.open("/find"), axe)
    judge(window.open("/webhooks"), axe)
    page = window.open("/model")
    page.locator("#charts[data-drawn]").wait_for()
    judge(page, axe)


def hashes(leaves: Sequence[bytes], ranges: Sequence[Range]) -> list[str]:
    """Return the hashes of ranges of leaves, in hex: a proof, by the definition of RFC 6962."""
    return [root(leaves[start:end]).hex() for start, end in ranges]


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_an_address_that_is_no_page_leads_back(visit: Open, axe: str, width: int, scheme: str) -> None:
    window = visit(width, scheme)
    window.sign_in("/log")
    answer = window.page.goto(f"{window.url}/dashboard/nothing")
    assert answer is not None
    assert answer.status == 404
    expect(window.page.get_by_text("This page does not exist.")).to_be_visible()
    judge(window.page, axe)
    # The browser also complains that it is missing.
    assert [text for text in window.complaints if "404" not in text] == []
    window.complaints.clear()
    window.page.get_by_role("link", name="Go to the overview").click()
    expect(window.page).to_have_url(f"{window.url}/dashboard")
    window.page.locator("#charts[data-drawn]").wait_for()


@pytest.mark.parametrize(
    ("width", "scheme"),
    LOOKS,
)
def test_a_drill_is_run_and_followed_without_loading_the_page_again(
    visit: Open, dashboard_database: str, axe: str, width: int, scheme: str
) -> None:
    window = visit(width, scheme)
    page = window.sign_in()
    page.locator("#charts[data-drawn]").wait_for()
    card = page.locator("#drill")
    loads = window.loads
    with held_log(dashboard_database) as release:
        # By keyboard; the focus stays although the card is replaced.
        card.get_by_role("button", name="Run a drill").press("Enter")
        expect(card.locator(".badge").first).to_have_text("Under way")
        expect(card.get_by_role("button", name="A drill is under way")).to_be_focused()
        judge(page, axe)
        release()
        expect(card.locator(".badge").first).to_have_text("Passed")
    expect(card.get_by_role("status")).to_have_text(re.compile(r"The weight on the test column fell from \d\S* to 0\."))
    expect(card.get_by_role("button", name="Run a drill")).to_be_focused()
    assert window.loads == loads
    judge(page, axe)
    card.get_by_role("link", name="Its request").click()
    expect(page.get_by_text(re.compile(r"^drill \d$"))).to_be_visible()
    expect(page.get_by_text("Weight on the test column before")).to_be_visible()
