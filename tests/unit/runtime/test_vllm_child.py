"""How vLLM's child says that it is ready, or that it never will be; the server is a stand-in."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

import pytest

from support.fake_engine_spec import short_dir

# A server beside which the child's own first request is made, as beside vLLM's.
PROGRAM: Final = """
import asyncio, pathlib, sys
from standby.runtime.engines import vllm_child

async def answer(reader, writer):
    await reader.readuntil(b"\\r\\n\\r\\n")
    writer.write(sys.argv[2].encode())
    writer.close()

async def main():
    server = await asyncio.start_unix_server(answer, sys.argv[1])
    await vllm_child._warm_and_say(pathlib.Path(sys.argv[1]), "demo")

asyncio.run(main())
"""


def run(answer: str) -> tuple[subprocess.CompletedProcess[bytes], bytes]:
    """The ended process, and what it wrote to its ready descriptor."""
    read_end, write_end = os.pipe()
    try:
        with short_dir() as folder:
            done = subprocess.run(
                [sys.executable, "-c", PROGRAM, str(folder / "engine.sock"), answer],
                env={**os.environ, "STANDBY_READY_FD": str(write_end)},
                pass_fds=(write_end,),
                capture_output=True,
                timeout=120,
                check=False,
            )
        os.close(write_end)
        return done, os.read(read_end, 64)
    finally:
        os.close(read_end)


@pytest.mark.parametrize("status", ["200 OK", "404 Not Found"])
def test_an_engine_whose_first_request_is_answered_is_ready(status: str) -> None:
    """One that only embeds refuses to generate, and has loaded all the same."""
    done, said = run(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n")
    assert (done.returncode, said) == (0, b"ready\n")


@pytest.mark.parametrize("answer", ["HTTP/1.1 500 Internal Server Error\r\n\r\n", ""])
def test_an_engine_that_cannot_answer_its_first_request_ends_and_says_so(answer: str) -> None:
    """It would be waited for until the limit of its start, minutes later."""
    done, said = run(answer)
    assert (done.returncode, said) == (1, b"")
    assert b"failed at its first request" in done.stderr
