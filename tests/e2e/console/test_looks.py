"""Who can use the console: by keyboard, in both themes, without motion, on a narrow screen; and its pictures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.async_api import Browser, Locator

from support.console_browser import Console, console_tab
from support.console_server import KEY, Feed, console_server
from support.console_world import RUNGS, TENANT, demo_world, everywhere
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

PICTURES: Final = Path(__file__).parents[3] / "docs" / "pictures"
WANTED: Final = os.environ.get("STANDBY_TEST_PICTURES") == "1"
PICTURE_LIMIT: Final = 200_000
# Every element whose own text is too close to what it stands on, by WCAG 2's formula: 4.5, or 3 where letters are large.
CONTRAST: Final = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  canvas.canvas.width = canvas.canvas.height = 1;
  const over = (under, paint) => {
    canvas.fillStyle = `rgb(${under.join(" ")})`;
    canvas.fillRect(0, 0, 1, 1);
    canvas.fillStyle = paint;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((part) => (part / 255 <= 0.03928 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    const above = element.parentElement ? ground(element.parentElement) : [255, 255, 255];
    return over(above, getComputedStyle(element).backgroundColor);
  };
  const faults = [];
  let seen = 0;
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].filter((node) => node.nodeType === 3).map((node) => node.data.trim()).join("");
    if (!own || element.closest(".hidden, option, :disabled, noscript, .u-legend")) continue;
    const style = getComputedStyle(element);
    const under = ground(element);
    const [one, other] = [light(over(under, style.color)), light(under)].sort((a, b) => b - a);
    const ratio = (one + 0.05) / (other + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    seen += 1;
    if (ratio < (large ? 3 : 4.5)) faults.push(`${own.slice(0, 30)} (${element.className}): ${ratio.toFixed(2)}`);
  }
  return { seen, faults: [...new Set(faults)] };
}"""

# Cells of an endpoint's row that stand on one another, by what is drawn in them: text may be wider than its box.
OVERLAPS: Final = """() => {
  const faults = [];
  for (const row of document.querySelectorAll(".grid-row")) {
    const drawn = [...row.querySelectorAll(".cell")].filter((cell) => cell.offsetParent !== null).map((cell) => {
      const range = document.createRange();
      range.selectNodeContents(cell);
      const clipped = cell.querySelector("bdi") ? cell : range;
      return [cell.className, clipped.getBoundingClientRect()];
    });
    for (const [one, a] of drawn) for (const [other, b] of drawn) {
      if (one < other && a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1) {
        faults.push(`${one} and ${other}`);
      }
    }
  }
  return [...new Set(faults)];
}"""


async def test_who_wants_no_motion_sees_none(browser: Browser) -> None:
    world = demo_world()
    async with console_server(world) as feed, console_tab(browser, feed.url, reduced_motion="reduce") as console:
        await console.sign_in(KEY)
        await console.watch_moves()
        sleeper = next(row for row in world["instances"] if row["endpoint"] == "legal-summaries")
        feed.push({"at": world["at"] + 1, "instances": [{**sleeper, "state": "ready", "rung": "ready"}]})
        await console.until("(id) => document.querySelector(`[data-chip='${id}']`).closest('.rung-ready.rung')", sleeper["id"])
        await console.is_drawn()
        assert await console.page.evaluate("[window.moves.length, document.getAnimations().length]") == [0, 0]


async def test_endpoints_are_sorted_and_chosen_by_keyboard(browser: Browser) -> None:
    async with console_server(demo_world()) as feed, console_tab(browser, feed.url) as console:
        await console.sign_in(KEY)
        await console.page.focus("#endpoints .cell-rps .sort")
        await console.page.keyboard.press("Enter")
        await console.page.wait_for_selector("#endpoints .grid-head .cell-rps[aria-sort='descending']")
        assert await first_row(console) == "search-rewrite"
        await console.page.focus(".grid-row[tabindex='0']")
        await console.page.keyboard.press("End")
        await console.until("() => document.activeElement.getAttribute('aria-rowindex') === '16'")
        await console.page.keyboard.press("Home")
        await console.until("() => document.activeElement.getAttribute('aria-rowindex') === '2'")
        await console.page.keyboard.press("ArrowDown")
        await console.until("() => document.activeElement.getAttribute('aria-rowindex') === '3'")
        await console.page.keyboard.press("Enter")
        await console.page.wait_for_selector(".detail h3 >> text=support-chat")
        await console.shows(".detail", "4 of 8 slots are busy")
        assert await console.page.input_value("#try-endpoint") == f"{TENANT}/support-chat"
        assert {line.split("\n")[0] for line in await console.page.locator("#activations [data-item]").all_inner_texts()} == {
            "support-chat"
        }


@pytest.mark.parametrize(("there", "back"), [("ArrowRight", "ArrowLeft"), ("ArrowDown", "ArrowUp")])
async def test_chips_are_gone_through_the_way_they_stand(browser: Browser, there: str, back: str) -> None:
    """They stand side by side, and below one another where there is no room."""
    async with console_server(demo_world()) as feed, console_tab(browser, feed.url) as console:
        await console.sign_in(KEY)
        chips = (
            console.page.locator(".rung:has(.chip:nth-child(1)) .chips")
            .filter(has=console.page.locator("li:nth-child(2)"))
            .first
        )
        first, second = (chips.locator("[data-chip]").nth(at) for at in (0, 1))
        await first.focus()
        await console.page.keyboard.press(there)
        await until(lambda: has_focus(second), "the second has the focus")
        await console.page.keyboard.press(back)
        await until(lambda: has_focus(first), "the first has the focus")


async def test_everything_is_reached_by_keyboard_and_seen(browser: Browser) -> None:
    """Tab goes through the page once and comes to every kind of control, each of which shows that it has the focus."""
    async with console_server(demo_world()) as feed, console_tab(browser, feed.url) as console:
        await console.sign_in(KEY)
        await console.page.evaluate("document.activeElement.blur()")
        reached: list[str] = []
        for _ in range(60):
            await console.page.keyboard.press("Tab")
            seen = await console.page.evaluate(
                "() => { const one = document.activeElement; const style = getComputedStyle(one); return [one.tagName + '.' + "
                "(one.id || one.className), style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2]; }"
            )
            if seen[0].startswith("BODY"):
                break
            reached.append(seen[0])
            assert seen[1], f"{seen[0]} does not show its focus"
        assert reached[0] == "A.skip"
        for wanted in (
            "BUTTON.theme",
            "BUTTON.chip",
            "TEXTAREA.try-prompt",
            "SELECT.rung-filter",
            "DIV.grid-row",
            "BUTTON.toggle",
        ):
            assert any(one.startswith(wanted) for one in reached), (wanted, reached)
        assert len(reached) < 60, "one tab stop for each list, not for each item"


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_text_stands_out_in_both_themes(browser: Browser, theme: str) -> None:
    """WCAG's AA contrast for every text, by the system's theme and by the page's own switch."""
    async with console_server(demo_world()) as feed:
        for options, clicks in (
            ({"color_scheme": theme}, 0),
            ({"color_scheme": "no-preference"}, 1 if theme == "light" else 2),
        ):
            async with console_tab(browser, feed.url, **options) as console:
                await console.open()
                assert (await console.page.evaluate(CONTRAST))["faults"] == []
                await console.sign_in(KEY)
                for _ in range(clicks):
                    await console.page.click(".theme")
                await console.page.click(".grid-row >> nth=1")
                ground = await console.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
                assert ground == {"light": "rgb(243, 245, 248)", "dark": "rgb(13, 18, 24)"}[theme]
                seen = await console.page.evaluate(CONTRAST)
                assert seen["faults"] == []
                assert seen["seen"] > 150


@pytest.mark.parametrize("width", [320, 360, 700, 1000])
async def test_narrow_screens_need_no_sideways_scrolling(browser: Browser, width: int) -> None:
    async with (
        console_server(demo_world()) as feed,
        console_tab(browser, feed.url, viewport={"width": width, "height": 780}) as console,
    ):
        await console.sign_in(KEY)
        await console.page.click(".grid-row >> nth=1")
        await console.page.wait_for_selector(".detail")
        assert await console.page.evaluate("document.documentElement.scrollWidth") == width
        beyond = await console.page.evaluate(
            "(width) => [...document.querySelectorAll('.panel, .chip, .node, .totals, button.primary, #try-prompt')]"
            ".filter((one) => one.getBoundingClientRect().right > width).map((one) => one.className)",
            width,
        )
        assert beyond == []
        assert await console.page.evaluate(OVERLAPS) == []
        rungs = await console.page.locator(".rung h3").all_inner_texts()
        assert rungs == (list(reversed(RUNGS)) if width <= 860 else list(RUNGS))


async def test_names_of_any_length_and_direction_stay_in_their_places(browser: Browser) -> None:
    """On the narrowest screen: names without a place to break, from right to left, and with a mark that turns what follows."""
    world = everywhere(demo_world(), f"\u202e\u05e9\u05dc\u05d5\u05dd{'w' * 200}")
    async with (
        console_server(world) as feed,
        console_tab(browser, feed.url, viewport={"width": 320, "height": 780}) as console,
    ):
        await console.sign_in(KEY)
        await console.page.click(".grid-row >> nth=0")
        await console.page.wait_for_selector(".detail")
        assert await console.page.evaluate("document.documentElement.scrollWidth") == 320
        assert await console.page.evaluate(OVERLAPS) == []
        turned = await console.page.evaluate(
            "[...document.querySelectorAll('.grid-row .num')].map((one) => getComputedStyle(one).direction)"
        )
        assert set(turned) == {"ltr"}


@pytest.mark.skipif(not WANTED, reason="pictures for the documents are made where STANDBY_TEST_PICTURES=1")
async def test_pictures_for_the_documents(browser: Browser) -> None:
    """The console in both themes and on a telephone, each small enough for a repository."""
    world = demo_world()
    async with console_server(world) as feed:
        for name, options, selector in (
            ("light", {"color_scheme": "light", "viewport": {"width": 1280, "height": 960}}, None),
            ("dark", {"color_scheme": "dark", "viewport": {"width": 1280, "height": 960}}, None),
            ("endpoints", {"color_scheme": "light", "viewport": {"width": 1280, "height": 1010}}, "#endpoints"),
            ("nodes", {"color_scheme": "dark", "viewport": {"width": 1280, "height": 960}}, "#decisions"),
            ("narrow", {"color_scheme": "dark", "viewport": {"width": 360, "height": 780}, "device_scale_factor": 2}, ".top"),
        ):
            async with console_tab(browser, feed.url, **options) as console:
                await console.sign_in(KEY)
                await show_off(console, feed, world)
                if selector:
                    await console.page.evaluate("(one) => document.querySelector(one).scrollIntoView()", selector)
                path = PICTURES / f"console-{name}.png"
                await console.page.screenshot(path=path)
                assert path.stat().st_size <= PICTURE_LIMIT


# ---- helpers ---------------------------------------------------------------------------------------------------


async def show_off(console: Console, feed: Feed, world: dict[str, Any]) -> None:
    feed.answer = (
        "Paris. It has been the capital of France for most of the time since Clovis made it his in 508, "
        "and is the seat of its government, its parliament and its highest courts."
    )
    feed.token_pause_s = 0.012
    for second in range(1, 21):
        totals = world["totals"]
        totals = {**totals, "rps": totals["rps"] + second % 5 - 2, "tokens_per_s": totals["tokens_per_s"] + 90 * (second % 4)}
        feed.push({"at": world["at"] + second, "totals": totals})
    await console.page.select_option("#try-endpoint", f"{TENANT}/support-chat")
    await console.page.click("text=Ask")
    await console.until("() => document.querySelector('#tryit [role=status]').innerText.startsWith('Done in')")
    await console.page.evaluate("document.activeElement.blur()")


async def has_focus(chip: Locator) -> bool:
    return bool(await chip.evaluate("(one) => one === document.activeElement"))


async def first_row(console: Console) -> str:
    return await console.text(".grid-row[aria-rowindex='2'] .cell-name bdi")
