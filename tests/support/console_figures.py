"""How heavy and how quick the console is, measured in a real Chromium with a thousand endpoints that never rest."""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
from typing import Final, TypedDict

from playwright.async_api import Browser

from standby.console.files import read_files
from support.console_browser import Console, chromium, console_tab
from support.console_server import KEY, Feed, console_server
from support.console_world import crowd, restless

EVERY_S: Final = 0.25
SETTLING_S: Final = 1.5
# Made before the measurement: what is measured is the browser, not how fast a test writes JSON.
CHANGES: Final = 16

_FRAMES: Final = """async (milliseconds) => {
  const frames = [];
  const tasks = [];
  const observer = new PerformanceObserver((list) => tasks.push(...list.getEntries().map((task) => task.duration)));
  observer.observe({ type: "longtask" });
  await new Promise((resolve) => {
    const began = performance.now();
    let last = began;
    const frame = (now) => {
      if (now > last) frames.push(now - last);
      last = now;
      if (now - began < milliseconds) requestAnimationFrame(frame);
      else resolve();
    };
    requestAnimationFrame(frame);
  });
  return { frames, tasks };
}"""
_FIRST_PAINT: Final = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"


class Figures(TypedDict):
    """``page_kb``: all files of the page, uncompressed, 1000 bytes each. ``worst_frame_ms``: the longest time between two
    frames, ``worst_task_ms``: the longest that the page kept its thread for, if it was 50 ms or more, else 0;
    ``board_ms``: from the beginning of the page's load until the board stands, with the thousand endpoints.
    """

    page_kb: float
    first_paint_ms: float
    board_ms: float
    frames: int
    p99_frame_ms: float
    worst_frame_ms: float
    worst_task_ms: float


async def measure(endpoints: int = 1000, seconds: float = 5.0, loads: int = 3) -> Figures:
    """Load the console several times and watch its frames for ``seconds`` while every endpoint changes each 250 ms."""
    world = crowd(endpoints)
    async with console_server(world) as feed, chromium() as browser:
        loaded = [await _load(browser, feed) for _ in range(loads)]
        async with console_tab(browser, feed.url) as console:
            await console.sign_in(KEY)
            frames, tasks = await _frames(console, feed, seconds)
    ordered = sorted(frames)
    return Figures(
        page_kb=loaded[0][0],
        first_paint_ms=round(statistics.median(paint for _, paint, _ in loaded), 1),
        board_ms=round(statistics.median(board for _, _, board in loaded), 1),
        frames=len(frames),
        p99_frame_ms=round(ordered[int(len(ordered) * 0.99)], 1),
        worst_frame_ms=round(ordered[-1], 1),
        worst_task_ms=round(max(tasks, default=0.0), 1),
    )


async def _load(browser: Browser, feed: Feed) -> tuple[float, float, float]:
    async with console_tab(browser, feed.url) as console:
        await console.sign_in(KEY)
        console.requests.clear()
        # Signed in, the page leads to the board at once; a new load in a tab is not answered from memory.
        await console.page.reload(wait_until="commit")
        await console.page.wait_for_selector("#ladder")
        board = await console.page.evaluate("performance.now()")
        paint = await (await console.until(f"() => {_FIRST_PAINT}")).json_value()
        return _weight(console), float(paint), float(board)


def _weight(console: Console) -> float:
    below = f"{console.url}/console/"
    paths = {request.removeprefix(below) or "index.html" for request in console.requests if request.startswith(below)}
    files = read_files()
    return round(sum(len(files[path].content) for path in paths) / 1000, 1)


async def _frames(console: Console, feed: Feed, seconds: float) -> tuple[list[float], list[float]]:
    changes = [json.dumps(change).encode() for change in itertools.islice(restless(feed.overview), CHANGES)]
    pushing = asyncio.create_task(_push(feed, changes))
    try:
        await asyncio.sleep(SETTLING_S)
        seen = await console.page.evaluate(_FRAMES, seconds * 1000)
    finally:
        pushing.cancel()
        await asyncio.gather(pushing, return_exceptions=True)
    return seen["frames"], seen["tasks"]


async def _push(feed: Feed, changes: list[bytes]) -> None:
    for change in itertools.cycle(changes):
        feed.push(change)
        await asyncio.sleep(EVERY_S)
