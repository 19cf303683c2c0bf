"""A fake engine: a program that serves the engines' HTTP on a unix socket and misbehaves on demand.

``python fake_engine.py --spec FILE``; the file holds ``socket``, ``served_name``, ``slots`` and ``options``. Knobs:

===================  ====================================================================================
start_delay_s        seconds until the socket is there
ready_after_s        seconds until health is 200 and completions work
health_lies          health is 200 from the first moment
fail_start           exit code of a start that fails (negative: that signal), after ``fail_message`` on stderr
first_completion_500 the first completion is answered with 500
completions_500      every completion is answered with 500
stall                completions get headers (streamed) or nothing, and never a token
stall_after_s        the same from then on; about health it goes on to say 200
die_after_tokens     the process kills itself after so many tokens of a request
ignore_term          SIGTERM does nothing
spawn_child          starts a helper process in the same group, which outlives a killed engine
allocate_mib         memory that it touches and holds
token_delay_ms       before each token
tokens, text         how many tokens an answer has at most (but with ``ignore_eos``), and its words
health_delay_s       while requests run: before each answer about health or metrics, as from one that has no time for it
unavailable_after_s  from then on everything is answered with 503, for ever
close_socket_after_s from then on nobody accepts connections
helper_dies_after_s  starts a helper process which kills itself after that
near_tie             every so many tokens the second best is near
runaway_mib          starts a process in a session of its own, which holds so much memory and outlives everybody
wakes_wrong          says something else after it was stopped and continued
kv_used              what it tells of its key-value cache while requests run; 0 otherwise
priority, adapters   what its adapter says of it: whether it goes by priority, and LoRA adapters, joined by commas
===================  ====================================================================================

A single completion whose body has ``fail_with`` is answered with that status, one with ``poison`` kills the process, one
with ``hold`` gets no token until its client leaves. One with a ``nonce`` gets it back as its tokens, ``<nonce>:0 <nonce>:1
…``. One that asks for ``logprobs`` gets each token with a second best one: 3 nats behind it, every ``near_tie``-th token
0.05.

``GET /metrics`` are Prometheus figures: ``fake:requests_running``, ``fake:requests_waiting``, ``fake:tokens_total``,
``fake:kv_used``.

``GET /stats`` says how many requests run (``active``), ended (``served``), were cut off by the client (``aborts``), how
many ran at once (``peak``), and how many ``tokens`` were generated.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

DEFAULT_TEXT = "The capital of France is Paris."
DAMAGED_TEXT = "!!!! !!!! !!!! !!!! !!!! !!!!"


class Aborted(Exception):
    """The client has gone."""


class FakeEngine:
    """State of the program: knobs and counts."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.socket = Path(spec["socket"])
        self.served_name: str = spec["served_name"]
        self.slots: int = spec.get("slots", 1)
        self.knobs: dict[str, Any] = spec.get("options", {})
        self.began = time.monotonic()
        self.ballast = bytearray(b"\1") * (int(self.knobs.get("allocate_mib", 0)) * 2**20)
        self.damaged = False
        self.stats = {"active": 0, "served": 0, "aborts": 0, "peak": 0, "completions": 0, "tokens": 0}

    @property
    def ready(self) -> bool:
        return time.monotonic() - self.began >= float(self.knobs.get("ready_after_s", 0))

    async def run(self) -> None:
        """Serve until killed."""
        if self.knobs.get("wakes_wrong"):
            asyncio.get_running_loop().add_signal_handler(signal.SIGCONT, setattr, self, "damaged", True)
        await asyncio.sleep(float(self.knobs.get("start_delay_s", 0)))
        server = await asyncio.start_unix_server(self.connection, str(self.socket), backlog=1024)
        if "close_socket_after_s" in self.knobs:
            asyncio.get_running_loop().call_later(float(self.knobs["close_socket_after_s"]), server.close)
        await asyncio.Event().wait()

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve the requests of one connection, one after the other."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while await self.one_request(reader, writer):
                pass
        writer.close()

    async def one_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        method, path, _ = head.split("\r\n", 1)[0].split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head.split("\r\n")[1:])}
        body = await reader.readexactly(int(headers.get("content-length") or 0))
        if path in ("/v1/chat/completions", "/v1/completions") and method == "POST":
            await self.completion(path, body, reader, writer)
        elif await self.unavailable():
            reply(writer, 503, error_body("service unavailable"))
        elif path == "/metrics":
            reply_text(writer, self.metrics())
        else:
            reply(writer, *self.lookup(path))
        await writer.drain()
        return headers.get("connection", "").lower() != "close"

    async def unavailable(self) -> bool:
        if self.stats["active"]:
            await asyncio.sleep(float(self.knobs.get("health_delay_s", 0)))
        return time.monotonic() - self.began >= float(self.knobs.get("unavailable_after_s", "inf"))

    def lookup(self, path: str) -> tuple[int, Any]:
        if path == "/health":
            if self.ready or self.knobs.get("health_lies"):
                return 200, {"status": "ok"}
            return 503, error_body("Loading model")
        if path == "/v1/models":
            return 200, {"object": "list", "data": [{"id": self.served_name, "object": "model"}]}
        if path == "/stats":
            return 200, self.stats
        return 404, error_body(f"no route {path}")

    def metrics(self) -> str:
        used = float(self.knobs.get("kv_used", 0)) if self.stats["active"] else 0.0
        return (
            f"# TYPE fake:kv_used gauge\nfake:kv_used {used}\n"
            f"# TYPE fake:requests_running gauge\nfake:requests_running {self.stats['active']}\n"
            "# TYPE fake:requests_waiting gauge\nfake:requests_waiting 0\n"
            f"# TYPE fake:tokens counter\nfake:tokens_total {self.stats['tokens']}\n"
        )

    async def completion(self, path: str, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (refusal := self.refusal(body)) is not None:
            reply(writer, *refusal)
            return
        asked = json.loads(body)
        if asked.get("poison"):
            os.kill(os.getpid(), signal.SIGKILL)
        self.stats["active"] += 1
        self.stats["peak"] = max(self.stats["peak"], self.stats["active"])
        gone = asyncio.ensure_future(reader.read(1))
        try:
            await (self.stream if asked.get("stream") else self.whole)(path, asked, gone, writer)
            self.stats["served"] += 1
        except (Aborted, ConnectionError):
            self.stats["aborts"] += 1
            raise ConnectionResetError from None
        finally:
            self.stats["active"] -= 1
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone

    def refusal(self, body: bytes) -> tuple[int, Any] | None:
        self.stats["completions"] += 1
        if not self.ready or time.monotonic() - self.began >= float(self.knobs.get("unavailable_after_s", "inf")):
            return 503, error_body("Loading model")
        if self.knobs.get("completions_500") or (self.knobs.get("first_completion_500") and self.stats["completions"] == 1):
            return 500, error_body("the fake engine fails on demand")
        try:
            asked = json.loads(body)
        except ValueError:
            return 400, error_body("the body is not JSON")
        return (int(asked["fail_with"]), error_body("the fake engine was asked to fail")) if "fail_with" in asked else None

    async def tokens(self, asked: dict[str, Any], gone: asyncio.Future[bytes]) -> AsyncIterator[str]:
        words = DAMAGED_TEXT.split(" ") if self.damaged else str(self.knobs.get("text", DEFAULT_TEXT)).split(" ")
        end = 10**9 if asked.get("ignore_eos") else int(self.knobs.get("tokens", len(words)))
        limit = min(end, int(asked.get("max_tokens") or 10**9))
        for number in range(limit):
            await self.pause(gone, hold=bool(asked.get("hold")))
            if number == self.knobs.get("die_after_tokens"):
                os.kill(os.getpid(), signal.SIGKILL)
            self.stats["tokens"] += 1
            word = f"{asked['nonce']}:{number}" if "nonce" in asked else words[number % len(words)]
            yield ("" if number == 0 else " ") + word

    async def pause(self, gone: asyncio.Future[bytes], *, hold: bool = False) -> None:
        stalled = self.knobs.get("stall") or time.monotonic() - self.began >= float(self.knobs.get("stall_after_s", "inf"))
        delay = None if hold or stalled else float(self.knobs.get("token_delay_ms", 0)) / 1000
        await asyncio.wait([gone], timeout=delay)
        if gone.done():
            raise Aborted

    async def whole(self, path: str, asked: dict[str, Any], gone: asyncio.Future[bytes], writer: asyncio.StreamWriter) -> None:
        parts = [token async for token in self.tokens(asked, gone)]
        text = "".join(parts)
        content = {"message": {"role": "assistant", "content": text}} if "chat" in path else {"text": text}
        choice = {"index": 0, "finish_reason": "stop", **content}
        if asked.get("logprobs"):
            choice["logprobs"] = self.logprobs(parts)
        reply(writer, 200, {**self.frame(path), "choices": [choice], "usage": usage(len(parts))})

    def logprobs(self, parts: list[str]) -> dict[str, Any]:
        near = int(self.knobs.get("near_tie", 0))
        margins = [0.05 if near and number % near == 0 else 3.0 for number in range(1, len(parts) + 1)]
        best = [{part: -0.1, f"{part}?": -0.1 - margin} for part, margin in zip(parts, margins, strict=True)]
        return {"tokens": parts, "token_logprobs": [-0.1] * len(parts), "top_logprobs": best, "text_offset": []}

    async def stream(self, path: str, asked: dict[str, Any], gone: asyncio.Future[bytes], writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        count = 0
        async for token in self.tokens(asked, gone):
            count += 1
            content = {"delta": {"content": token}} if "chat" in path else {"text": token}
            event(writer, {**self.frame(path), "choices": [{"index": 0, "finish_reason": None, **content}]})
            await writer.drain()
        last: dict[str, Any] = {"delta": {}} if "chat" in path else {"text": ""}
        event(writer, {**self.frame(path), "choices": [{"index": 0, "finish_reason": "stop", **last}]})
        if (asked.get("stream_options") or {}).get("include_usage"):
            event(writer, {**self.frame(path), "choices": [], "usage": usage(count)})
        chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")

    def frame(self, path: str) -> dict[str, Any]:
        kind = "chat.completion" if "chat" in path else "text_completion"
        return {"id": "fake-1", "object": kind, "created": int(time.time()), "model": self.served_name}


def usage(count: int) -> dict[str, int]:
    return {"prompt_tokens": 1, "completion_tokens": count, "total_tokens": count + 1}


def error_body(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "fake_engine"}}


def reply(writer: asyncio.StreamWriter, status: int, content: object) -> None:
    body = json.dumps(content).encode()
    head = f"HTTP/1.1 {status} Fake\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


def reply_text(writer: asyncio.StreamWriter, text: str) -> None:
    head = f"HTTP/1.1 200 Fake\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len(text)}\r\n\r\n"
    writer.write(head.encode() + text.encode())


def event(writer: asyncio.StreamWriter, content: object) -> None:
    chunk(writer, b"data: " + json.dumps(content).encode() + b"\n\n")


def chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def main() -> None:
    """Apply the knobs of the start, then serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--spec", type=Path, required=True)
    spec = json.loads(parser.parse_args().spec.read_bytes())
    knobs = spec.get("options", {})
    if knobs.get("ignore_term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if knobs.get("spawn_child"):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    if "runaway_mib" in knobs:
        runaway = "import sys, time; held = bytearray(b'1') * (int(sys.argv[1]) * 2**20); time.sleep(600)"
        subprocess.Popen([sys.executable, "-c", runaway, str(knobs["runaway_mib"])], start_new_session=True)
    if "helper_dies_after_s" in knobs:
        helper = "import os, sys, time; time.sleep(float(sys.argv[1])); os.kill(os.getpid(), 9)"
        subprocess.Popen([sys.executable, "-c", helper, str(knobs["helper_dies_after_s"])])
    if "fail_start" in knobs:
        time.sleep(float(knobs.get("start_delay_s", 0)))
        print(knobs.get("fail_message", "error: the fake engine was told to fail"), file=sys.stderr, flush=True)
        code = int(knobs["fail_start"])
        if code < 0:
            os.kill(os.getpid(), -code)
        sys.exit(code)
    asyncio.run(FakeEngine(spec).run())


if __name__ == "__main__":
    main()
