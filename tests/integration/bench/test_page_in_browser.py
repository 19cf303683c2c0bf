"""A report page in a real browser: no request, no refusal by its own policy, nothing wider than a narrow screen."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, async_playwright

from standby.bench.report import write_bench_page
from standby.bench.statistics import summarize
from standby.bench.values import Slo
from support.bench_values import a_run, a_sample
from support.console_browser import ABSENT, CHROMIUM

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=ABSENT)

HOSTILE = "</script><img src=http://127.0.0.1:9/x onerror=document.title='run'>"


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        found = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        await found.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    samples = [
        a_sample(float(at), e2e_s=0.2 + at / 50, ttft_s=0.1, rung="cold" if at % 9 == 0 else HOSTILE) for at in range(50)
    ]
    run = a_run(samples, target=HOSTILE)
    write_bench_page(run, summarize(run, Slo(ttft_s=0.5)), tmp_path / "page.html")
    return tmp_path / "page.html"


async def opened(browser: Browser, file: Path, *, width: int = 1100, dark: bool = False) -> tuple[Page, list[str]]:
    """The page, and whatever it asked for or complained of."""
    said: list[str] = []
    page = await browser.new_page(viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light")
    page.on("console", lambda message: said.append(message.text))
    page.on("request", lambda request: said.append(request.url))
    await page.goto(file.as_uri())
    return page, said


async def test_it_asks_nobody_and_runs_nothing(browser: Browser, file: Path) -> None:
    page, said = await opened(browser, file)

    assert said == [file.as_uri()]
    assert await page.title() == f"Load on {HOSTILE}"
    assert await page.locator("img").count() == 0
    # Its style is applied: the policy's hash is right.
    assert await page.locator(".tiles").evaluate("one => getComputedStyle(one).display") == "grid"
    assert await page.locator("path.curve").count() >= 2


async def test_it_is_dark_where_that_is_wanted_and_light_on_paper(browser: Browser, file: Path) -> None:
    page, _ = await opened(browser, file, dark=True)
    ground = "getComputedStyle(document.body).backgroundColor"

    assert await page.evaluate(ground) == "rgb(22, 22, 21)"
    await page.emulate_media(media="print")
    assert await page.evaluate(ground) == "rgb(255, 255, 255)"


async def test_it_fits_a_narrow_screen(browser: Browser, file: Path) -> None:
    """Wide tables scroll inside their own frame, which the keyboard reaches."""
    page, _ = await opened(browser, file, width=380)

    assert await page.evaluate("document.documentElement.scrollWidth") <= 380
    assert await page.locator(".scroll[tabindex='0']").count() >= 2
