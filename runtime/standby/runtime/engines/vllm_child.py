"""Runs vLLM's OpenAI API server for one instance, inside vLLM's own interpreter.

``serve`` is called in a process forked from a zygote; ``main`` is the same program started plainly. Arguments are
vLLM's own, as a list. The engine says that it is ready when it listens and one request has been answered: the first one
pays for kernels, buffers and validators that are made on first use.

On a CPU every process of the engine sleeps when it is sent SLEEP: it passes the word to the processes that it has
forked, gives back what it can spare, and stops itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

from standby.host.guard import arm
from standby.runtime import isolation_entry, paging
from standby.runtime.engines import vllm_compat as compat
from standby.runtime.engines import vllm_early, vllm_preload
from standby.runtime.engines.child_protocol import PARENT_VARIABLE, READY_FD_VARIABLE, READY_LINE, SLEEP

_LOOK_S: Final = 0.005
_WARM_PROMPT: Final = "Hi"


def serve(arguments: Sequence[str]) -> None:
    """Serve until told to end."""
    import uvloop  # noqa: PLC0415 - a package of vLLM's interpreter, not of ours

    isolation_entry.enter()
    parsed = compat.Parser.parse(arguments)
    compat.configure_logging(parsed)
    compat.compile_nothing(parsed)
    compat.fork_workers()
    compat.guard_engine_core()
    vllm_early.overlap(parsed)
    # Installed here and inherited by what is forked from here: the default would end a process that is sent it.
    signal.signal(SLEEP, _fall_asleep)
    uvloop.run(_serve(parsed))


async def _serve(arguments: Any) -> None:
    warm = asyncio.create_task(_warm_and_say(Path(arguments.uds), _served_name(arguments)))
    try:
        await compat.run_server(arguments)
    finally:
        warm.cancel()


def _served_name(arguments: Any) -> str:
    names = arguments.served_model_name
    return names[0] if isinstance(names, list) and names else str(names or arguments.model)


async def _warm_and_say(socket: Path, name: str) -> None:
    """Have one token generated as soon as the server listens, then say that the engine is ready."""
    while True:
        try:
            reader, writer = await asyncio.open_unix_connection(str(socket))
            break
        except OSError:  # bound early, but it listens only when everything is there
            await asyncio.sleep(_LOOK_S)
    body = json.dumps({"model": name, "prompt": _WARM_PROMPT, "max_tokens": 1, "temperature": 0}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: engine\r\nConnection: close\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    status: list[bytes] = []
    with contextlib.suppress(OSError):
        status = (await reader.readline()).split()
        await reader.read()
    writer.close()
    # 4xx: it has loaded, but generates no text, as models that only embed. 5xx, or nothing at all: it is not well.
    if len(status) > 1 and not status[1].startswith(b"5"):
        _say_ready()
        return
    sys.stderr.write(f"ERROR the engine failed at its first request, which was answered with {status!r}\n")
    sys.stderr.flush()
    os._exit(1)  # it would be waited for until the limit of its start


def _say_ready() -> None:
    descriptor = os.environ.pop(READY_FD_VARIABLE, "")
    if descriptor.isdigit():
        os.write(int(descriptor), READY_LINE)
        os.close(int(descriptor))


def _fall_asleep(_number: int, _frame: FrameType | None) -> None:
    """Give memory back and stop. Runs between two steps of the main thread, which alone computes in EngineCore."""
    for child in multiprocessing.active_children():
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid or 0, SLEEP)
    paging.drop_zero_blocks()
    paging.trim_heap()
    os.kill(os.getpid(), signal.SIGSTOP)


def main() -> None:
    """Start plainly: everything that a zygote would have imported is imported now."""
    if parent := os.environ.get(PARENT_VARIABLE):
        arm(int(parent))
    vllm_preload.preload()
    compat.freeze()
    serve(sys.argv[1:])


if __name__ == "__main__":
    main()
