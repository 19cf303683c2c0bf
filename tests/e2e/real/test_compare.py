"""standby beside the container-style baseline, both with the real small model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.real_model import real_model_path
from support.user import BIN, Up

pytestmark = [pytest.mark.drill, pytest.mark.real_engine, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]

LIMIT_S = 300.0


async def test_standby_and_the_baseline_fill_the_whole_table(running: Up, tmp_path: Path) -> None:
    """Short, so that nothing is claimed; but every cell is measured, from real starts."""
    await running.serve("side", "s3://models/smollm2/", keep_ready="400ms", keep_asleep="200ms", keep_staged="200ms", slots=4)
    page = tmp_path / "page.html"
    words = (
        "compare", "side", f"container:{real_model_path()}", "--evict", "--keep", "1s",
        "--requests", "6", "--rate", "6", "--blocks", "1", "--cold", "1", "--burst", "3", "--bursts", "1", "--scale-ins", "1",
        "--max-tokens", "4", "--prompt-tokens", "8", "--json", "--html", str(page),
    )  # fmt: skip
    ran = await running.shell.run([str(BIN / "standby"), *words], 0, {}, deadline_s=LIMIT_S)

    found = ran.json()
    rows: dict[str, Any] = {row["name"]: row for row in found["table"]}
    unknown = [
        (name, row["a"], row["b"]) for name, row in rows.items() if "not measured" in {row["a"]["known"], row["b"]["known"]}
    ]
    assert unknown == []
    for side in ("a", "b"):
        assert found[side]["death"] is None
        assert [one["error"] for one in found[side]["cold"]] == [""]
        assert found[side]["cold"][0]["rung"] == "cold"
        assert rows["failed, warm"][side]["text"] == "0 of 6 (0.0%)"
        assert rows["failed in any way while scaling in"][side]["text"] == "0 of 6 (0.0%)"
        assert found[side]["holding"]["awake_bytes"] > 50_000_000
        assert found[side]["holding"]["gb_s"] > 0
    assert {"fetched", "loaded"} <= {name for name, _ in found["a"]["cold"][0]["phases_ms"]}
    assert [name for name, _ in found["b"]["cold"][0]["phases_ms"]] == ["fetched", "unpacked", "loaded"]
    assert "thrown out of the nodes' caches" in rows["how it was made cold"]["a"]["text"]
    assert rows["how it was made cold"]["b"]["text"].startswith("stopped by hand")
    assert "start 1: fetched in " in ran.err
    assert "Side by side" in page.read_text()
