"""A drill in a real browser: started on the overview, and followed until the weights have been read."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.support.clients.visits import LOOKS, Visit, held_log, judge
from tests.support.everyday import everyday

pytestmark = pytest.mark.needs("chromium")

Open = Callable[..., Visit]


@pytest.mark.parametrize(
    ("width", "scheme"),
    everyday(LOOKS, (400, "dark")),
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
