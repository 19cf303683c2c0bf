"""The container-style baseline that ships with the benchmark: ``python -m standby.bench.baseline --model MODEL.gguf``.

What a serverless container does for each cold start, without a container: copy ``model.tar.gz`` from a store (a folder of
this machine), unpack it, start a plain llama.cpp server, wait until it is well; keep it for a fixed time after the last
request; stop it and throw its files away. One container, no sleep, no zygote, no page cache on purpose.

What a real one pays on top is left out, in its favour: scheduling, pulling the image, starting the container, and the way
to S3, which a local copy stands in for. Everything that it does is printed. Its first line is JSON with its address.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from standby.bench.baseline_container import Container, pack
from standby.bench.baseline_proxy import Proxy
from standby.domain.durations import parse_duration
from standby.domain.errors import StandbyError
from standby.host import guard
from standby.host.tasks import end


def main(words: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM or Ctrl-C. Exit code 3 where the model cannot be packed."""
    asked = _parsed(words)
    if asked.parent is not None:
        guard.arm(asked.parent)
    try:
        asyncio.run(_serve(asked))
    except StandbyError as error:
        raise SystemExit(f"baseline: {error}") from None


async def _serve(asked: argparse.Namespace) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    began = time.monotonic()

    def say(line: str) -> None:
        _print(f"{time.monotonic() - began:7.1f} s  {line}")

    with tempfile.TemporaryDirectory(prefix="sb-base-", ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        (root / "store").mkdir()
        packed = await asyncio.to_thread(pack, asked.model, root / "store")
        container = Container(packed, root, asked.slots, say)
        proxy = Proxy(container, parse_duration(asked.keep))
        server = await proxy.serve(asked.host, asked.port)
        port = server.sockets[0].getsockname()[1]
        _print(json.dumps({"url": f"http://{asked.host}:{port}", "pid": os.getpid()}))
        say(f"store: {packed.name}, {packed.stat().st_size / 1e6:.1f} MB; kept for {asked.keep} after the last request")
        watching = asyncio.create_task(proxy.watch())
        waiting = asyncio.create_task(stopped.wait())
        try:
            await asyncio.wait((watching, waiting), return_when=asyncio.FIRST_COMPLETED)
        finally:
            server.close()
            await end([watching, waiting])
            await container.stop()


def _print(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - a program of its own: what it does is told to whoever started it


def _parsed(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file, or a model.tar.gz with one")
    parser.add_argument("--keep", default="5s", help="how long an idle container stays")
    parser.add_argument("--slots", type=int, default=4, help="requests at once in the engine")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--parent", type=int, help="end when the process with this number ends")
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
