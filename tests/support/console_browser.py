"""A real Chromium on the console: everything that it complains of and everywhere that it asks is kept."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from playwright.async_api import Browser, Page, async_playwright

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ABSENT: Final = "no Chromium on this machine: apt-get install chromium"
DEADLINE_MS: Final = 60_000


@dataclass
class Console:
    """One tab with the console."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    async def open(self) -> None:
        """Load the page."""
        await self.page.goto(f"{self.url}/console/")

    async def sign_in(self, key: str, tenant: str = "") -> None:
        """Load the page, give the key and wait for the board."""
        await self.open()
        await self.page.fill("#key", key)
        if tenant:
            await self.page.fill("#tenant", tenant)
        await self.page.click("button[type=submit]")
        await self.page.wait_for_selector("#ladder")

    async def text(self, selector: str) -> str:
        """What an element shows."""
        return await self.page.inner_text(selector)

    async def shows(self, selector: str, words: str) -> None:
        """Wait until an element shows these words."""
        script = "([selector, words]) => document.querySelector(selector)?.innerText.includes(words)"
        await self.until(script, [selector, words])

    async def is_drawn(self) -> None:
        """Wait until the page was drawn twice: whatever moves by what has happened so far moves by then."""
        await self.page.evaluate("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")

    async def until(self, script: str, argument: object = None) -> Any:
        """Wait until a JavaScript function is true of the page."""
        return await self.page.wait_for_function(script, arg=argument, timeout=DEADLINE_MS)

    async def nothing_to_complain_of(self) -> None:
        """Assert that there was no error in the browser's console, no breach of the policy, no request elsewhere."""
        assert self.complaints == []
        assert await self.page.evaluate("window.violations") == []
        assert self.elsewhere() == []

    async def rung_of(self, chip: str) -> str:
        """The rung on which a chip stands."""
        script = (
            "(id) => [...document.querySelectorAll('[data-chip]')].find((one) => one.dataset.chip === id)"
            "?.closest('.rung').querySelector('h3').innerText"
        )
        return str(await self.page.evaluate(script, chip))

    async def watch_moves(self) -> None:
        """Keep the movements that the page plays from now on in ``window.moves``."""
        await self.page.evaluate(
            "() => { window.moves = []; const play = Element.prototype.animate;"
            " Element.prototype.animate = function (frames, how) {"
            " const from = frames[0].transform ?? '';"
            " if (from.startsWith('translate')) window.moves.push({ chip: this.dataset.chip, from });"
            " return play.call(this, frames, how); }; }"
        )

    def elsewhere(self) -> list[str]:
        """Requests that went to another place than the console's own."""
        return [one for one in self.requests if not one.startswith((f"{self.url}/", "data:"))]


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Start Chromium without a window."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def console_tab(browser: Browser, url: str, **options: Any) -> AsyncIterator[Console]:
    """Open a tab of its own, with its own storage; ``options`` as Playwright's ``new_context`` takes them."""
    context = await browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    try:
        page = await context.new_page()
        page.set_default_timeout(DEADLINE_MS)
        console = Console(page, url)
        page.on("console", lambda said: console.complaints.append(said.text) if said.type in {"error", "warning"} else None)
        page.on("pageerror", lambda error: console.complaints.append(str(error)))
        page.on("request", lambda request: console.requests.append(request.url))
        await page.add_init_script(
            "window.violations = []; document.addEventListener('securitypolicyviolation', (event) => "
            "window.violations.push(`${event.violatedDirective} ${event.blockedURI}`));"
        )
        yield console
    finally:
        await context.close()
