"""The console on a whole deployment of real processes: what happens there is what it shows."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from support.console_browser import console_tab
from support.deployment import PARIS, Deployment, deployment
from support.gguf_builder import gguf

pytestmark = pytest.mark.asyncio(loop_scope="module")

OTHER_TENANT = "222222222222"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def there(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> AsyncIterator[Deployment]:
    """A running deployment with one endpoint at zero that takes three seconds to start."""
    async with deployment(tmp_path_factory.mktemp("console")) as running:
        await running.endpoint("capital", knobs={"start_delay_s": 3.0}, slots=2)
        yield running


async def test_an_endpoint_wakes_before_ones_eyes(there: Deployment, browser: Browser) -> None:
    """Asked from the page itself: its chip climbs to ready, the answer streams, and its activation has its phases."""
    async with console_tab(browser, there.url()) as console:
        await console.sign_in(admin_key(there))
        assert await console.text(".rung-cold.rung .chip-name") == "capital"
        assert await console.page.locator(".rung-ready.rung .chip").count() == 0
        await console.page.fill("#try-prompt", "Name the capital of France.")
        await console.page.click("text=Ask")
        await console.page.wait_for_selector(".chip.climbing")
        await console.page.wait_for_selector(".rung-ready.rung .chip[data-state='ready'] >> text=capital")
        await console.until("(words) => document.querySelector('.answer').innerText.trim() === words", PARIS)
        await console.until("() => document.querySelector('#tryit [role=status]').innerText.startsWith('Done in')")
        assert float((await console.text("#try-ttft")).removesuffix("s").removesuffix("m")) > 0
        await console.page.wait_for_selector("#activations [data-item]")
        phases = await console.page.eval_on_selector_all(
            "#activations [data-item]:first-child .segment", "(all) => all.map((one) => one.dataset.phase)"
        )
        assert {"loaded", "probed"} <= set(phases)
        assert "other" not in phases
        await console.shows(".spoken", "ready after")
        await console.page.wait_for_selector("#decisions .lines li")
        reason = await console.text("#decisions .lines li:last-child p")
        assert len(reason.split()) > 3, reason
        await console.shows("#decisions", "capital")
        await console.page.wait_for_selector("#events .kind-transition")
        await console.shows("#nodes", "n1")
        await console.shows("#savings", "$")
        await console.nothing_to_complain_of()


async def test_a_key_that_is_none_is_refused_in_words(there: Deployment, browser: Browser) -> None:
    async with console_tab(browser, there.url()) as console:
        await console.open()
        await console.page.fill("#key", "sk-standby-0123456789abcdef-nothing")
        await console.page.click("button[type=submit]")
        await console.until("() => document.querySelector('#signin-status').innerText.includes('not valid')")
        assert await console.page.locator("#ladder").count() == 0
        # The browser itself reports the refusal, and nothing else is wrong.
        assert [one for one in console.complaints if "401" not in one] == []


async def test_a_tenant_sees_only_its_own(there: Deployment, browser: Browser) -> None:
    """Neither names nor nodes nor events of anybody else, whatever happens meanwhile; and its key's end is its session's."""
    issued = await there.api("POST", "/keys", {"name": "console", "tenant": OTHER_TENANT})
    async with console_tab(browser, there.url()) as console:
        await console.sign_in(issued["api_key"])
        assert OTHER_TENANT in await console.text(".who")
        assert "No endpoint yet" in await console.text("#endpoints")
        asked = await requests_of(there, "capital")
        await there.warm("capital")
        await there.until(lambda: is_known(there, "capital", asked + 1), "the gateway's console knows of it")
        # What the page is told after this was told after that.
        await endpoint_of_the_other(there, "own")
        await console.page.wait_for_selector("#endpoints .cell-name >> text=own")
        assert await console.page.locator("[data-chip]").count() == 1
        assert "capital" not in await console.page.evaluate("document.body.innerText.replace(/The capital of France/g, '')")
        assert await console.page.locator("#nodes").count() == 0
        await console.nothing_to_complain_of()
        await there.api("DELETE", f"/keys/{issued['id']}")
        await console.page.wait_for_selector("#signin-status >> text=Not signed in")
        assert await console.page.evaluate("sessionStorage.length") == 0


async def test_a_gateway_that_dies_is_found_again(there: Deployment, browser: Browser) -> None:
    """The page says that it is cut off and since when, and goes on by itself when a gateway serves again."""
    port_before = there.url()
    async with console_tab(browser, port_before) as console:
        await console.sign_in(admin_key(there))
        there.kill("gateway")
        await console.page.wait_for_selector(".banner >> text=Connection lost, data from")
        assert await console.page.locator("[data-chip]").count() == 1
        await console.page.wait_for_selector(".is-live")
        await console.page.wait_for_selector(".banner.empty", state="attached")
        assert there.url() == port_before
        await console.page.wait_for_selector("[data-chip] >> text=capital")
        assert console.elsewhere() == []
        assert await console.page.evaluate("window.violations") == []


async def endpoint_of_the_other(there: Deployment, name: str) -> None:
    """Create an endpoint of the other tenant, which stays at zero."""
    path = there.artifacts / f"{name}.gguf"
    path.write_bytes(gguf(seed=815))
    for where, body in (
        ("models", {"name": name, "source_uri": path.as_uri(), "engine": "fake"}),
        ("endpoints", {"name": name, "model": name}),
    ):
        made = await there.call("POST", f"/api/v1/{where}", json=body, headers={"x-standby-tenant": OTHER_TENANT})
        assert made.status_code < 300, made.text


async def requests_of(there: Deployment, endpoint: str) -> int:
    """How many requests of an endpoint the administrator's console knows of."""
    rows = (await there.api("GET", "/overview"))["endpoints"]
    return sum(int(row["requests"]) for row in rows if row["name"] == endpoint)


async def is_known(there: Deployment, endpoint: str, count: int) -> bool:
    return await requests_of(there, endpoint) >= count


def admin_key(there: Deployment) -> str:
    return there.stack.headers()["authorization"].removeprefix("Bearer ")
