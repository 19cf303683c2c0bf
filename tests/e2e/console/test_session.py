"""Signing in and out, and what happens to the key and the feed meanwhile."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser

from support.console_browser import DEADLINE_MS, Console, console_tab
from support.console_server import KEY, console_server
from support.console_world import demo_world
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

STORES = "[JSON.stringify(sessionStorage), JSON.stringify(localStorage), document.cookie, location.href]"


async def test_a_wrong_key_is_told_and_not_kept(browser: Browser) -> None:
    async with console_server(demo_world()) as feed, console_tab(browser, feed.url) as console:
        await console.open()
        await give(console, "sk-standby-0000-wrong")
        await console.until("() => document.querySelector('#signin-status').innerText.includes('not valid')")
        assert "send another" in await console.text("#signin-status")
        assert await console.page.is_visible("#key")
        assert await console.page.input_value("#key") == "sk-standby-0000-wrong"
        assert "wrong" not in str(await console.page.evaluate(STORES))
        assert feed.opened == 0


async def test_no_key_is_asked_for(browser: Browser) -> None:
    async with console_server(demo_world()) as feed, console_tab(browser, feed.url) as console:
        await console.open()
        await console.page.click("button[type=submit]")
        await console.until("() => document.querySelector('#signin-status').innerText.includes('key is needed')")
        await console.until("() => document.activeElement.id === 'key'")
        assert not [one for one in console.requests if "/api/" in one]


async def test_the_key_lives_in_this_tab_until_sign_out(browser: Browser) -> None:
    """It is in no URL, no cookie and no storage that outlives the tab; a reload keeps it, and sign out forgets it."""
    async with console_server(demo_world()) as feed, console_tab(browser, feed.url) as console:
        await console.sign_in(KEY)
        session, *others = await console.page.evaluate(STORES)
        assert KEY in session
        assert KEY not in str(others)
        assert not [one for one in console.requests if KEY in one]
        await console.page.reload()
        await console.page.wait_for_selector("#ladder")
        await until(lambda: feed.readers == 1, "the tab has one feed", DEADLINE_MS / 1000)
        await console.page.click("text=Sign out")
        await console.page.wait_for_selector("#key")
        assert KEY not in str(await console.page.evaluate(STORES))
        assert await console.page.input_value("#key") == ""
        await until(lambda: feed.readers == 0, "sign out closes the feed", DEADLINE_MS / 1000)


async def test_a_key_that_ends_signs_out(browser: Browser) -> None:
    """The server closes the feed of a revoked key, and refuses the next one."""
    async with console_server(demo_world()) as feed, console_tab(browser, feed.url) as console:
        await console.sign_in(KEY)
        feed.refuse = 401
        feed.drop()
        await console.page.wait_for_selector("#key")
        assert "not valid" in await console.text("#signin-status")
        assert KEY not in str(await console.page.evaluate(STORES))


async def test_a_lost_connection_is_told_and_comes_back(browser: Browser) -> None:
    """What was known stays in sight, with its age; attempts are repeated at growing intervals until one succeeds."""
    async with console_server(demo_world()) as feed, console_tab(browser, feed.url) as console:
        await console.sign_in(KEY)
        feed.refuse = 503
        feed.drop()
        await console.page.wait_for_selector(".banner:not(.empty)")
        banner = await console.text(".banner")
        assert banner.startswith("Connection lost, data from ")
        assert banner[27:35].count(":") == 2
        assert await console.page.locator("[data-chip]").count() == 16
        feed.refuse = 0
        feed.overview["endpoints"] = [row for row in feed.overview["endpoints"] if row["name"] != "tutor-fr"]
        # It may have tried by itself in this very moment, and then there is nothing to click.
        await console.page.evaluate("document.querySelector('.banner button')?.click()")
        await console.until("() => document.querySelector('.banner.empty') && document.querySelector('.is-live')")
        await console.until("() => document.querySelectorAll('[data-chip]').length === 15")
        assert feed.opened == 2
        assert feed.readers == 1


async def test_a_gateway_whose_clock_is_behind_is_drawn_at_once(browser: Browser) -> None:
    """After a step of its clock, or at another gateway: the charts must not wait for an hour until it has caught up."""
    async with console_server(demo_world()) as feed, console_tab(browser, feed.url) as console:
        await console.sign_in(KEY)
        earlier, totals = feed.overview["at"] - 3600, feed.overview["totals"]
        feed.push({"at": earlier, "totals": {**totals, "rps": 77.0}})
        feed.push({"at": earlier + 1, "totals": {**totals, "rps": 78.0}})
        await console.until("() => document.querySelector('#traffic .chart').ariaLabel.includes('requests/s 78')")


async def test_an_unreachable_gateway_is_told_before_the_first_word(browser: Browser) -> None:
    async with console_server(demo_world()) as feed, console_tab(browser, feed.url) as console:
        feed.refuse = 503
        await console.open()
        await give(console, KEY)
        await console.until("() => document.querySelector('#signin-status').innerText.includes('trying again')")
        feed.refuse = 0
        await console.page.wait_for_selector("#ladder")


async def test_an_administrator_may_name_a_tenant(browser: Browser) -> None:
    """The tenant goes with each request as the API expects it; ``all`` asks for every tenant's names."""
    async with console_server(demo_world()) as feed:
        async with console_tab(browser, feed.url) as console:
            await console.sign_in(KEY, tenant="000000000042")
            assert feed.headers[-1]["x-standby-tenant"] == "000000000042"
        async with console_tab(browser, feed.url) as console:
            await console.sign_in(KEY, tenant="all")
            assert "x-standby-tenant" not in feed.headers[-1]
            assert "all tenants" in await console.text(".who")
            assert any("tenants=all" in one for one in console.requests)


async def give(console: Console, key: str) -> None:
    await console.page.fill("#key", key)
    await console.page.click("button[type=submit]")
