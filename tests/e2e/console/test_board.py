"""What the board shows of a feed that a test writes: movement, crowds, hostile names, answers and empty lists."""

from __future__ import annotations

import itertools
import json
from typing import Final

import pytest
from playwright.async_api import Browser

from support.console_browser import console_tab
from support.console_figures import measure
from support.console_server import KEY, console_server
from support.console_world import TENANT, crowd, demo_world, everywhere, restless

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOSTILE: Final = '"\'><img src=x onerror="window.hurt=1"><script>window.hurt=1</script>${window.hurt=1}'


async def test_a_chip_moves_from_rung_to_rung(browser: Browser) -> None:
    """The same instance leaves one rung and arrives on another, seen moving; on the way it says what it does."""
    world = demo_world()
    async with console_server(world) as feed, console_tab(browser, feed.url) as console:
        await console.sign_in(KEY)
        sleeper = next(row for row in world["instances"] if row["endpoint"] == "legal-summaries")
        assert await console.rung_of(sleeper["id"]) == "asleep"
        feed.push({"at": world["at"] + 1, "instances": [{**sleeper, "state": "waking", "progress": 0.37}]})
        await console.until(
            "(id) => document.querySelector(`[data-chip='${id}'] .bar > span`)?.style.width === '37%'", sleeper["id"]
        )
        assert await console.rung_of(sleeper["id"]) == "asleep"
        await console.watch_moves()
        feed.push({"at": world["at"] + 2, "instances": [{**sleeper, "state": "ready", "rung": "ready", "in_flight": 3}]})
        await console.until("(id) => document.querySelector(`[data-chip='${id}']`).closest('.rung-ready.rung')", sleeper["id"])
        (move,) = await console.page.evaluate("window.moves")
        assert move["chip"] == sleeper["id"]
        # It came from the left, where the lower rungs are.
        assert move["from"].startswith("translate(-")
        assert "3/8" in await console.text(f"[data-chip='{sleeper['id']}']")
        await console.until("() => document.querySelector('[aria-live].hidden').innerText === 'legal-summaries is ready'")


async def test_an_endpoint_at_zero_climbs_from_the_lowest_rung_and_returns(browser: Browser) -> None:
    """The mark of an endpoint without an instance becomes its first instance, and comes back when that is gone."""
    world = demo_world()
    async with console_server(world) as feed, console_tab(browser, feed.url) as console:
        await console.sign_in(KEY)
        mark = f"at-zero {TENANT}/archive-qa"
        assert await console.rung_of(mark) == "cold"
        await console.watch_moves()
        born = {**world["instances"][0], "id": "i-new", "endpoint": "archive-qa"}
        feed.push({"at": world["at"] + 1, "instances": [born]})
        await console.page.wait_for_selector("[data-chip='i-new']")
        assert await console.rung_of("i-new") == "ready"
        assert await console.page.locator(f"[data-chip='{mark}']").count() == 0
        feed.push({"at": world["at"] + 2, "gone_instances": ["i-new"]})
        await console.page.wait_for_selector(f"[data-chip='{mark}']")
        assert [move["chip"] for move in await console.page.evaluate("window.moves")] == ["i-new", mark]


async def test_what_the_feed_says_is_text_and_nothing_else(browser: Browser) -> None:
    """Markup in every string of the feed (names, reasons, words, events, ids) is shown as it is and runs nothing."""
    world = {**everywhere(demo_world(), HOSTILE), "tenant": f"{TENANT}{HOSTILE}"}
    # The first instance keeps its own rung, so that the words of a known one are drawn as well.
    world["instances"].append({**world["instances"][0], "id": "i-known", "rung": "ready", "state": "fetching", "progress": 0.5})
    async with console_server(world) as feed, console_tab(browser, feed.url) as console:
        await console.sign_in(KEY)
        await console.page.click(".grid-row >> nth=0")
        await console.page.wait_for_selector(".detail")
        await console.page.click("summary")
        feed.push(
            {"at": world["at"] + 1, **{part: world[part][:2] for part in ("activations", "decisions", "events", "nodes")}}
        )
        change = {**world["decisions"][0], "id": "last", "at": world["at"] + 9, "reason": f"the last one{HOSTILE}"}
        await console.page.click(".grid-row >> nth=0")
        feed.push({"at": world["at"] + 2, "decisions": [change]})
        await console.until("() => document.querySelector('#decisions').innerText.includes('the last one')")
        shown = await console.page.evaluate("document.body.innerText")
        for panel in ("#ladder", "#endpoints", "#activations", "#decisions", "#savings", "#nodes", "#events", ".who"):
            assert HOSTILE in (await console.page.inner_text(panel)).replace("\n", ""), panel
        assert shown.count("<script>window.hurt=1</script>") > 100
        assert await console.page.evaluate("window.hurt") is None
        assert await console.page.locator("#app script, #app img[src='x'], #app [onerror]").count() == 0
        classes = await console.page.evaluate(
            "[...document.querySelectorAll('#app [class]')].map((one) => one.getAttribute('class')).join(' ')"
        )
        assert "onerror" not in classes
        await console.nothing_to_complain_of()


async def test_a_thousand_endpoints_are_drawn_as_a_few(browser: Browser) -> None:
    """Rows and chips in the page are bounded whatever the feed's size, and stay right while everything changes."""
    world = crowd(1000)
    changes = list(itertools.islice(restless(json.loads(json.dumps(world))), 1))
    async with console_server(world) as feed, console_tab(browser, feed.url) as console:
        await console.sign_in(KEY)
        assert await console.page.locator(".grid-row").count() <= 24
        assert await console.page.locator("[data-chip]").count() <= 5 * 36
        assert await console.page.get_attribute("#endpoints [role=grid]", "aria-rowcount") == "1001"
        assert "and 164 more" in await console.text("#ladder")
        await console.page.evaluate("document.querySelector('.grid-box').scrollTop = 44 * 700")
        await console.page.wait_for_selector(".grid-row >> text=tenant-app-0705")
        assert await console.page.locator(".grid-row").count() <= 24
        feed.push(changes[0])
        wanted = next(row for row in changes[0]["endpoints"] if row["name"] == "tenant-app-0705")
        await console.until(
            "(count) => [...document.querySelectorAll('.grid-row')].some((row) => "
            "row.innerText.includes('tenant-app-0705') && row.querySelector('.cell-in_flight').innerText.startsWith(count))",
            str(wanted["in_flight"]),
        )
        await console.page.fill("#endpoint-filter", "0042")
        await console.until("() => document.querySelectorAll('.grid-row').length === 1")
        assert await console.text("#endpoints [role=status]") == "1 of 1,000"
        await console.page.fill("#endpoint-filter", "")
        await console.page.select_option("#rung-filter", "ready")
        await console.until("() => document.querySelector('#endpoints [role=status]').innerText === '200 of 1,000'")
        await console.nothing_to_complain_of()


async def test_the_measurement_measures() -> None:
    """The figures are of a page that draws: frames were seen, and every file of the page was weighed."""
    figures = await measure(endpoints=50, seconds=2.0, loads=1)
    assert figures["frames"] >= 5
    assert 50 < figures["page_kb"] <= 300
    assert 0 < figures["first_paint_ms"] <= figures["board_ms"]
    assert figures["worst_frame_ms"] >= figures["p99_frame_ms"] > 0


async def test_an_activation_says_its_phases_to_whoever_points_at_it(browser: Browser) -> None:
    async with console_server(demo_world()) as feed, console_tab(browser, feed.url) as console:
        await console.sign_in(KEY)
        await console.page.focus("#activations [data-item] >> nth=0")
        for _ in range(3):
            await console.page.keyboard.press("ArrowDown")
        await console.shows(".spoken", "legal-summaries from cold at ")
        said = await console.text(".spoken")
        assert said.startswith("legal-summaries from cold at ")
        assert "fetched 4.52 s" in said
        assert said.endswith("ready after 9.04 s")
        assert said == await console.page.evaluate("document.activeElement.getAttribute('aria-label')")
        await console.page.hover("#activations [data-item] >> nth=5")
        await console.shows(".spoken", "failed: the engine was killed while it loaded: out of memory on n2")


async def test_events_are_filtered_by_kind(browser: Browser) -> None:
    async with console_server(demo_world()) as feed, console_tab(browser, feed.url) as console:
        await console.sign_in(KEY)
        assert await console.page.locator("#events .lines li").count() == 30
        await console.page.click("#events button:text-is('notice')")
        await console.page.wait_for_selector("#events button[aria-pressed='true']:text-is('notice')")
        assert set(await console.page.locator("#events .lines .kind").all_inner_texts()) == {"notice"}
        assert await console.page.get_attribute("#events button:text-is('notice')", "aria-pressed") == "true"


async def test_an_answer_streams_and_can_be_stopped(browser: Browser) -> None:
    async with console_server(demo_world()) as feed, console_tab(browser, feed.url) as console:
        feed.token_pause_s = 0.02
        await console.sign_in(KEY)
        await console.page.select_option("#try-endpoint", f"{TENANT}/support-chat")
        await console.page.fill("#try-prompt", "Which city?")
        await console.page.click("text=Ask")
        await console.until("() => document.querySelector('.answer').innerText.trim() === 'Paris is the capital of France.'")
        await console.until("() => document.querySelector('#tryit [role=status]').innerText.startsWith('Done in')")
        assert feed.asked[-1]["model"] == "llama-3.1-8b"
        assert feed.asked[-1]["messages"] == [{"role": "user", "content": "Which city?"}]
        assert (await console.text("#try-ttft")).endswith("ms")
        assert float(await console.text("#try-speed")) > 1
        assert await console.text("#try-rung") == "ready"
        feed.answer = "word " * 5000
        await console.page.click("text=Ask")
        await console.until("() => document.querySelector('.answer').innerText.length > 20")
        await console.page.click("text=Stop")
        await console.until("() => document.querySelector('#tryit [role=status]').innerText === 'Stopped.'")
        assert await console.page.is_enabled("text=Ask")
        feed.refuse = 403
        await console.page.click("text=Ask")
        await console.until("() => document.querySelector('#tryit [role=status]').innerText.includes('not valid')")


async def test_a_tenant_is_not_shown_nodes(browser: Browser) -> None:
    world = {**demo_world(), "admin": False, "nodes": []}
    async with console_server(world) as feed, console_tab(browser, feed.url) as console:
        await console.sign_in(KEY)
        assert await console.page.locator("#nodes, a[href='#nodes']").count() == 0
        assert await console.text(".who") == f"tenant {TENANT}"


async def test_an_empty_deployment_says_so(browser: Browser) -> None:
    """Before the first endpoint, with every list empty and every figure missing."""
    world = demo_world()
    world.update(endpoints=[], instances=[], nodes=[], activations=[], decisions=[], events=[], totals={}, savings=None)
    async with console_server(world) as feed, console_tab(browser, feed.url) as console:
        await console.sign_in(KEY)
        assert "No endpoint yet" in await console.text("#endpoints")
        assert "Nothing has been woken yet" in await console.text("#activations")
        assert not await console.page.is_enabled("text=Ask")
        await console.nothing_to_complain_of()
