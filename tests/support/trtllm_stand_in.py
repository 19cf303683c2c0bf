"""A STAND-IN for ``trtllm-serve``: its HTTP surface and the behaviour of its processes, without a GPU and without a model.

It was written from TensorRT-LLM's public documentation, sources and issues. Nothing here was recorded from a real run,
and a test that passes against it says nothing of the real program's answers or speed.

``python trtllm_stand_in.py MODEL --backend pytorch --host H --port P --config FILE``, as the real one is called. Knobs
come from ``stand_in.json`` in the model's folder:

====================  ===================================================================================
version               1.2.1 (default): refuses connections until it is ready, has no sleep, no priority, and is called
                      after the model's folder. 1.4.0: 503 with its state until it is ready, and has all three
ready_after_s         seconds until it is ready
fail_start            exit code of a start that fails (negative: that signal), after ``fail_message`` on stderr
generation_fails      /health is 200 and every generation is answered with 500
stall                 requests get no token
unavailable_after     after so many completions everything is answered with 503, for ever (its issue 18663)
worker_mib            memory that the worker holds
token_delay_ms        before each token
tokens, text          how many tokens an answer has at most, and its words
refuse_logprobs       alternatives are answered with 400
no_memory_routes      an engine that takes --enable_sleep_mode and lacks the routes
metrics_wait_s        how long /metrics waits for a record when there is none
====================  ===================================================================================

Processes: it starts ``orted``, and that a worker, each in a session of its own. They end when it ends by itself, and
outlive it when it is killed, or told to end before it is ready. After SIGTERM it waits for running requests, for ever.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import hmac
import json
import mmap
import os
import signal
import socket
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from support.fake_engine import Aborted, FakeEngine, error_body, reply, reply_text

KNOBS_FILE = "stand_in.json"
DISCONNECT_LOOK_S = 1.0
_COMPLETION_KEYS = {
    "model", "prompt", "messages", "max_tokens", "max_completion_tokens", "temperature", "stream", "stream_options",
    "logprobs", "ignore_eos", "top_p", "stop", "seed", "n",
}  # fmt: skip
_CONFIG_KEYS: dict[str, set[str] | None] = {
    "max_batch_size": None, "max_num_tokens": None, "max_seq_len": None, "tensor_parallel_size": None,
    "pipeline_parallel_size": None, "moe_expert_parallel_size": None, "load_format": None, "checkpoint_format": None,
    "enable_lora": None, "enable_chunked_prefill": None, "enable_iter_perf_stats": None, "iter_stats_max_iterations": None,
    "return_perf_metrics": None, "batch_wait_timeout_ms": None, "enable_autotuner": None,
    "lora_config": {"max_lora_rank", "max_loras", "max_cpu_loras"},
    "torch_compile_config": {"enable_piecewise_cuda_graph", "capture_num_tokens"},
    "cuda_graph_config": {"batch_sizes", "max_batch_size", "enable_padding"},
    "scheduler_config": {"capacity_scheduler_policy"},
    "speculative_config": {"decoding_type", "max_draft_len", "max_matching_ngram_size", "num_nextn_predict_layers"},
    "kv_cache_config": {
        "enable_block_reuse", "max_tokens", "free_gpu_memory_fraction", "max_gpu_total_bytes", "host_cache_size",
        "secondary_offload_min_priority", "dtype", "tokens_per_block", "event_buffer_max_size",
    },
}  # fmt: skip


class StandIn(FakeEngine):
    """The HTTP surface."""

    def __init__(self, arguments: argparse.Namespace, knobs: dict[str, Any], config: dict[str, Any], worker: Worker) -> None:
        name = arguments.served_model_name or Path(arguments.model).name
        super().__init__({"socket": "", "served_name": name, "slots": config.get("max_batch_size", 1), "options": knobs})
        self.arguments, self.config, self.worker = arguments, config, worker
        self.newer = is_newer(knobs)
        self.records: deque[dict[str, Any]] = deque(maxlen=config.get("iter_stats_max_iterations", 1000))
        self.iteration = 0
        self.memory = "running"
        self.nonces: set[str] = set()
        self.key = os.environ.get("TRTLLM_RUNTIME_CONTROL_API_KEY", "")
        self.ending = asyncio.Event()
        self.looks: WeakKeyDictionary[asyncio.Future[bytes], asyncio.Future[None]] = WeakKeyDictionary()

    async def run(self) -> None:
        """Bind at once, listen when the version does, serve until SIGTERM and the end of the last request."""
        bound = bind(self.arguments.host, self.arguments.port)
        if not self.newer:
            await asyncio.sleep(float(self.knobs.get("ready_after_s", 0)))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.ending.set)
        server = await asyncio.start_server(self.connection, sock=bound)
        await self.ending.wait()
        server.close()
        while self.stats["active"]:
            await asyncio.sleep(0.02)
        self.worker.end()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as its server does: it ends by the signal that it was sent
        os.kill(os.getpid(), signal.SIGTERM)

    async def one_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        method, path, _ = head.split("\r\n", 1)[0].split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head.split("\r\n")[1:])}
        body = await reader.readexactly(int(headers.get("content-length") or 0))
        if (reason := self.why_unavailable()) is not None:
            unavailable(writer, reason)
        elif path in ("/v1/chat/completions", "/v1/completions") and method == "POST":
            await self.completion(path, body, reader, writer)
        elif path == "/health_generate":
            await self.health_generate(writer)
        elif path == "/metrics":
            reply(writer, 200, await self.drained())
        elif path == "/prometheus/metrics" and self.config.get("return_perf_metrics"):
            reply_text(writer, self.metrics())
        elif path in ("/release_memory", "/resume_memory", "/memory_status") and self.sleeps():
            reply(writer, *self.control(method, path, headers, body))
        else:
            reply(writer, *self.lookup(path))
        await writer.drain()
        return headers.get("connection", "").lower() != "close"

    def why_unavailable(self) -> str | None:
        limit = self.knobs.get("unavailable_after")
        if limit is not None and self.stats["completions"] > int(limit):
            return "LLM is unavailable. Please check the server logs for more details."
        return None if self.ready else "starting"

    def lookup(self, path: str) -> tuple[int, Any]:
        if path == "/health":  # 1.2 says this whatever happens
            return 200, None
        return (200, {"version": version(self.knobs)}) if path == "/version" else super().lookup(path)

    async def health_generate(self, writer: asyncio.StreamWriter) -> None:
        self.stats["active"] += 1
        try:
            if self.knobs.get("generation_fails"):
                reply(writer, 500, "Generation health check failed")
                return
            if self.knobs.get("stall"):
                await asyncio.Event().wait()
            self.step(completed=1)
            reply(writer, 200, "Generation health check OK")
        finally:
            self.stats["active"] -= 1

    def refusal(self, body: bytes) -> tuple[int, Any] | None:
        self.stats["completions"] += 1
        if self.knobs.get("generation_fails"):
            return 500, error_body("CppExecutorError: worker is gone")
        try:
            asked = json.loads(body)
        except ValueError:
            return 400, {"error": "the body is not JSON"}
        if self.newer and asked.get("model") != self.served_name:
            return 404, error_body(f"The model {asked.get('model')} does not exist.")
        fault = self.fault(asked)
        return None if fault is None else (400, {"error": fault})

    def fault(self, asked: dict[str, Any]) -> str | None:
        known = _COMPLETION_KEYS | ({"priority"} if self.newer else set())
        if unknown := set(asked) - known:
            return f"{sorted(unknown)}: Extra inputs are not permitted"
        if not 0 <= asked.get("priority", 0.5) <= 1:
            return "priority: Input should be between 0 and 1"
        return "logprobs are not supported" if self.knobs.get("refuse_logprobs") and "logprobs" in asked else None

    async def pause(self, gone: asyncio.Future[bytes], *, hold: bool = False) -> None:
        delay = None if hold or self.knobs.get("stall") else float(self.knobs.get("token_delay_ms", 0)) / 1000
        if gone not in self.looks:
            self.looks[gone] = asyncio.ensure_future(look_for_departure(gone))
        await asyncio.wait([self.looks[gone]], timeout=delay)
        if self.looks[gone].done():
            raise Aborted
        self.step()

    def step(self, *, completed: int = 0) -> None:
        self.iteration += 1
        if self.config.get("enable_iter_perf_stats"):
            running = self.stats["active"] - completed
            self.records.append(
                {
                    "iter": self.iteration, "iterLatencyMS": 1.0, "numActiveRequests": running, "numQueuedRequests": 0,
                    "numCompletedRequests": completed, "kvCacheStats": {"maxNumBlocks": 100, "usedNumBlocks": running},
                }
            )  # fmt: skip

    async def drained(self) -> list[dict[str, Any]]:
        if not self.records:
            await asyncio.sleep(float(self.knobs.get("metrics_wait_s", 0)))
        records = list(self.records)
        self.records.clear()
        return records

    async def completion(self, path: str, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await super().completion(path, body, reader, writer)
        finally:
            self.step()  # the iteration after the last token, from which the request is gone

    def metrics(self) -> str:
        return f"# TYPE trtllm_request_success counter\ntrtllm_request_success_total {self.stats['served']}\n"

    # ---- memory ------------------------------------------------------------------------------------------------

    def sleeps(self) -> bool:
        return bool(self.arguments.enable_sleep_mode) and not self.knobs.get("no_memory_routes")

    def control(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Any]:
        if not self.signed(method, path, headers, body):
            return 401, {"detail": "Invalid runtime control request authentication."}
        if path == "/memory_status":
            return 200, {"state": self.memory, "parked_tags": [] if self.memory == "running" else ["kv_cache", "model"]}
        wanted = "parked" if path == "/release_memory" else "running"
        if wanted == self.memory:
            return 409, error_body(f"Runtime memory is already {wanted}")
        self.memory = wanted
        self.worker.hold(wanted == "running")
        return 200, None

    def signed(self, method: str, path: str, headers: dict[str, str], body: bytes) -> bool:
        moment, once = (headers.get(f"x-trtllm-runtime-control-{name}", "") for name in ("timestamp", "nonce"))
        message = f"trtllm-runtime-control-v1\n{method}\n{path}\n{moment}\n{once}\n".encode() + body
        wanted = "sha256=" + hmac.new(self.key.encode(), message, hashlib.sha256).hexdigest()
        fresh = moment.isdigit() and abs(time.time() - int(moment)) <= 300 and len(once) == 32 and once not in self.nonces
        self.nonces.add(once)
        return fresh and hmac.compare_digest(wanted, headers.get("x-trtllm-runtime-control-auth", ""))


async def look_for_departure(gone: asyncio.Future[bytes]) -> None:
    """It looks once a second whether the client has gone."""
    while not gone.done():
        await asyncio.sleep(DISCONNECT_LOOK_S)


class Worker:
    """``orted`` and the worker below it, each in a session of its own; the worker holds memory."""

    def __init__(self, mebibytes: int) -> None:
        read_end, write_end = os.pipe()
        self.orted = os.fork()
        if self.orted == 0:
            os.setsid()
            worker = os.fork()
            if worker == 0:
                os.setsid()
                work(mebibytes, write_end)
            os.write(write_end, f"{worker}\n".encode())
            os.waitpid(worker, 0)
            os._exit(0)
        os.close(write_end)
        self.reports = os.fdopen(read_end)
        lines = (self.reports.readline().strip(), self.reports.readline().strip())
        self.pid = next(int(line) for line in lines if line.isdigit())

    def hold(self, wanted: bool) -> None:
        """Let the worker hold its memory, or give it back; returns when it has."""
        os.kill(self.pid, signal.SIGUSR1 if wanted else signal.SIGUSR2)
        self.reports.readline()

    def end(self) -> None:
        for pid in (self.pid, self.orted):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.orted, 0)


def work(mebibytes: int, reports: int) -> NoReturn:
    """Hold memory until told otherwise; never returns."""
    wanted = {signal.SIGUSR1, signal.SIGUSR2}
    signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    told: signal.Signals = signal.SIGUSR1
    while True:
        held = mmap.mmap(-1, max(1, mebibytes) * 2**20) if told == signal.SIGUSR1 else None
        if held is not None:
            for offset in range(0, len(held), mmap.PAGESIZE):
                held[offset] = 1
        os.write(reports, b"done\n")
        told = signal.Signals(signal.sigwait(wanted))
        if held is not None:
            held.close()


def bind(host: str, port: int) -> socket.socket:
    """Bind without listening: a connection is refused until somebody listens."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.bind((host, port))
    except OSError as error:
        raise RuntimeError(f"Failed to bind socket to {host}:{port}: {error}") from error
    return bound


def unavailable(writer: asyncio.StreamWriter, reason: str) -> None:
    state = b"X-TRTLLM-Server-State: starting\r\nRetry-After: 1\r\n" if reason == "starting" else b""
    body = reason.encode()
    writer.write(b"HTTP/1.1 503 Service Unavailable\r\n" + state + b"Content-Length: %d\r\n\r\n" % len(body) + body)


def version(knobs: dict[str, Any]) -> str:
    return str(knobs.get("version", "1.2.1"))


def is_newer(knobs: dict[str, Any]) -> bool:
    return tuple(int(part) for part in version(knobs).split(".")[:2]) >= (1, 3)


def strict_config(text: str, *, newer: bool) -> dict[str, Any]:
    """Read the part of YAML that is JSON; a key that is not known ends the start, as with the real one."""
    config: dict[str, Any] = json.loads(text)
    for key, value in config.items():
        inner = _CONFIG_KEYS.get(key, set())
        allowed = inner | {"waiting_queue_policy"} if newer and inner and key == "scheduler_config" else inner
        unknown = [key] if key not in _CONFIG_KEYS else sorted(set(value or ()) - allowed) if allowed is not None else []
        if unknown:
            raise ValueError(f"1 validation error for TorchLlmArgs\n{unknown[0]}\n  Extra inputs are not permitted")
    return config


def arguments_of(model_knobs: bool) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("model")
    parser.add_argument("--backend", choices=("pytorch",))
    parser.add_argument("--host", default="localhost")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--config", type=Path, required=True)
    parser.set_defaults(served_model_name=None, enable_sleep_mode=False)
    if model_knobs:
        parser.add_argument("--served_model_name")
        parser.add_argument("--enable_sleep_mode", action="store_true")
    return parser.parse_args()


def main() -> None:
    """Start like the real one: read the configuration, start the workers, load, listen."""
    knobs_file = Path(sys.argv[1]) / KNOBS_FILE
    knobs: dict[str, Any] = json.loads(knobs_file.read_bytes()) if knobs_file.exists() else {}
    arguments = arguments_of(is_newer(knobs))
    config = strict_config(arguments.config.read_text(), newer=is_newer(knobs))
    if "fail_start" in knobs:
        print(knobs.get("fail_message", "RuntimeError: the stand-in was told to fail"), file=sys.stderr, flush=True)
        code = int(knobs["fail_start"])
        if code < 0:
            os.kill(os.getpid(), -code)
        sys.exit(code)
    worker = Worker(int(knobs.get("worker_mib", 8)))
    try:
        asyncio.run(StandIn(arguments, knobs, config, worker).run())
    finally:
        worker.end()


if __name__ == "__main__":
    main()
