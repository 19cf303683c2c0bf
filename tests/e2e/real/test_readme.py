"""The README's ten lines, as they are written there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.s3_server import S3Server
from support.user import PARIS, up

pytestmark = [pytest.mark.real_engine, pytest.mark.asyncio(loop_scope="module")]

README = Path(__file__).parents[3] / "README.md"


def ten_lines() -> list[str]:
    """The commands under the heading, without their comments."""
    block = re.search(r"^## Ten lines\n\n```\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    return [re.sub(r"\s+#.*", "", line) for line in block.group(1).splitlines()]


async def test_the_ten_lines_work(s3: S3Server, folder: Path) -> None:
    """Only the port, the five minutes and the message that the line leaves out are put in."""
    lines = ten_lines()
    assert lines[0] == "standby up &"
    outputs: dict[str, str] = {}
    async with up(folder / "state", s3.env()) as running:
        for line in lines[1:]:
            replaced = (
                line.replace("--keep-ready 5m", "--keep-ready 1s")
                .replace("localhost:8080", running.url.removeprefix("http://"))
                .replace("$KEY", outputs.get("standby keys create", "").strip())
                .replace(
                    '"messages":[…]', '"temperature":0,"messages":[{"role":"user","content":"Name the capital of France."}]'
                )
            )
            ran = await running.shell.line(replaced)
            outputs[" ".join(line.split()[:3])] = ran.out

    assert len(lines) == 10
    assert "parameters     134,515,008" in outputs["standby models register"]
    assert outputs["standby invoke smol"].strip()
    assert "smol" in outputs["standby ps"]
    assert "asleep" in outputs["standby endpoints wait"]
    assert PARIS in outputs['curl -H "Authorization:']
    assert "llama_cpp" in outputs["standby status &&"]
    assert "nats-server" in outputs["standby doctor"]
