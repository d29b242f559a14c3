"""Windows of a real browser on the dashboard, checked when they close."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import asyncpg
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect

from service.db.locks import Lock
from tests.support.processes.lethe_process import KEY

#: Longest wait for a page, so that a busy machine changes nothing but the time.
PATIENCE_MS = 120_000
expect.set_options(timeout=PATIENCE_MS)

#: Window widths and colour schemes for checking pages; the first two cover each width and scheme once.
LOOKS = [(1280, "dark"), (400, "light"), (1280, "light"), (400, "dark")]


class Visit:
    """A window with its own cookies, and a record of its console messages and requests."""

    def __init__(self, browser: Browser, url: str, width: int, scheme: Literal["light", "dark"]) -> None:
        self.url = url
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.complaints: list[str] = []
        self.elsewhere: list[str] = []
        #: Page loads so far.
        self.loads = 0
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.context.on("request", self._request)

    def open(self, path: str = "") -> Page:
        """Go to a page of the dashboard."""
        self.page.goto(f"{self.url}/dashboard{path}")
        return self.page

    def sign_in(self, path: str = "", key: str = KEY) -> Page:
        """Go to a page through the form that asks for a key."""
        page = self.open(path)
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("button", name="Sign out").wait_for()
        # Scripts run after the page is parsed, and earlier key presses are lost.
        page.wait_for_load_state()
        return page

    def close(self) -> None:
        """Close the window. Raises AssertionError if the console had messages or a request went to another origin."""
        self.context.close()
        assert not self.complaints, self.complaints
        assert not self.elsewhere, self.elsewhere

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _request(self, request: Request) -> None:
        self.loads += request.is_navigation_request()
        if not request.url.startswith(f"{self.url}/dashboard"):
            self.elsewhere.append(request.url)


def judge(page: Page, axe: str) -> None:
    """Raise AssertionError if axe-core finds a fault, or the page is wider than its window."""
    page.get_by_role("heading", level=1).wait_for()
    page.evaluate(axe)
    found = page.evaluate("axe.run({resultTypes: ['violations']})")
    faults = [
        f"{fault['id']} ({fault['impact']}): {node['html']} {node['failureSummary']}"
        for fault in found["violations"]
        for node in fault["nodes"]
    ]
    assert not faults, f"{page.url}: {faults}"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), page.url


@contextmanager
def held_log(database_url: str) -> Iterator[Callable[[], None]]:
    """Block all appends to the log, so that requests cannot be applied, until the yielded function is called."""
    ready, done = threading.Event(), threading.Event()

    async def hold() -> None:
        unlimited = {"transaction_timeout": "0", "idle_in_transaction_session_timeout": "0"}
        connection = await asyncpg.connect(database_url, server_settings=unlimited)
        try:
            async with connection.transaction():
                await connection.execute(f"LOCK TABLE {Lock.LOG}")
                ready.set()
                await asyncio.to_thread(done.wait)
        finally:
            await connection.close()

    thread = threading.Thread(target=lambda: asyncio.run(hold()))
    thread.start()
    try:
        assert ready.wait(30.0)
        yield done.set
    finally:
        done.set()
        thread.join()
