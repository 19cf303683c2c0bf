"""llama.cpp: GGUF models on any processor; sleeps by giving its weights back to the page cache and stopping."""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from standby.domain.errors import ConfigurationError
from standby.domain.model import EngineKind, Manifest
from standby.runtime.engine_http import request
from standby.runtime.engines.base import Capabilities, EngineHandle, EngineLoad, EngineSpec, Options, SuspendResult
from standby.runtime.engines.child_protocol import SLEEP, SLEEP_BUSY
from standby.runtime.engines.llama_cpp_child import ChildSpec
from standby.runtime.engines.llama_cpp_options import LlamaCppOptions
from standby.runtime.engines.process_engine import ProcessEngine, write_spec
from standby.runtime.engines.sleep_steps import until_stopped
from standby.runtime.procfs import page_cache_bytes, resident

_CHILD_MODULE: Final = "standby.runtime.engines.llama_cpp_child"
_SUSPEND_LIMIT_S: Final = 10.0
_SUSPEND_LOOK_S: Final = 0.001
_DEPARTURE_NOTICED_S: Final = 1.2
_SLOTS_LIMIT_S: Final = 2.0

# Measured on SmolLM2-135M: interpreter, libraries and compute buffers of one engine.
_BASE_BYTES: Final = 160 * 1024 * 1024
# Key-value bytes per token in f16 where only the parameter count is known: 2 * layers * heads * head size * 2 bytes
# grows with about the 2/3 power of the parameters. 23 KiB for 135 M, 115 KiB for 1 B, 350 KiB for 8 B: above models
# with grouped heads, near those without.
_KV_FACTOR: Final = 0.0876
_KV_POWER: Final = 2 / 3
_KV_BITS: Final = {"f32": 32, "f16": 16, "bf16": 16, "q8_0": 8.5, "q5_1": 6, "q5_0": 5.5, "q4_1": 5, "q4_0": 4.5}
_BYTES_PER_PARAMETER: Final = 0.6  # of a 4-bit file, where the count is not known


class LlamaCpp(ProcessEngine):
    """One child process per instance, running ``llama_cpp_child``.

    A client that leaves is noticed when the next token is written to it, or, for an answer that is not streamed, when
    nothing has happened in the whole engine for a second: while another slot generates, an abandoned request of that
    kind runs to its end (llama.cpp 11549).
    """

    guards_itself = True
    says_ready = True

    @property
    def kind(self) -> EngineKind:
        """llama.cpp."""
        return EngineKind.LLAMA_CPP

    @property
    def capabilities(self) -> Capabilities:
        """Sleeps; weights are mapped files, so that instances of one model share them."""
        return Capabilities(sleep=True)

    def check(self, options: Options) -> None:
        """Raise InvalidInput unless every option is known and in range."""
        LlamaCppOptions.parse(options)

    def estimate_bytes(self, manifest: Manifest, options: Options, slots: int) -> int:
        """Weights as mapped, key-value cache of every slot, prompt cache, buffers. An upper estimate, in bytes."""
        parsed = LlamaCppOptions.parse(options)
        parameters = float(manifest.facts.parameter_count or manifest.unpacked_bytes / _BYTES_PER_PARAMETER)
        context = min(parsed.context, manifest.facts.context_length or parsed.context)
        guess = _KV_FACTOR * math.pow(parameters, _KV_POWER)
        per_token = (manifest.facts.kv_bytes_per_token or guess) * _KV_BITS[parsed.kv_type] / 16
        weights = manifest.unpacked_bytes * (2 if parsed.repack else 1)
        return round(weights + per_token * context * slots + parsed.prompt_cache_mib * 2**20 + _BASE_BYTES)

    @property
    def version(self) -> str:
        """The binding's version, which carries llama.cpp's own build number."""
        return f"xllamacpp {metadata.version('xllamacpp')}"

    def probe_payload(self, handle: EngineHandle, prompt: str, tokens: int, *, margins: bool) -> dict[str, object]:
        """Keep the prompt cached: the next probe of a waking engine computes nothing of it again."""
        return {**super().probe_payload(handle, prompt, tokens, margins=margins), "cache_prompt": True}

    async def load(self, handle: EngineHandle, deadline_s: float) -> EngineLoad:
        """Read the busy slots, and as progress all tokens taken in and given out.

        Its metrics say nothing of the cache any more; its slots do, and are asked at the same moment.
        """
        figures, used = await asyncio.gather(self.metrics(handle, deadline_s), _kv_used(handle, deadline_s))
        return EngineLoad(
            running=round(figures.get("llamacpp:requests_processing", 0)),
            waiting=round(figures.get("llamacpp:requests_deferred", 0)),
            progress=figures.get("llamacpp:prompt_tokens_total", 0) + figures.get("llamacpp:tokens_predicted_total", 0),
            kv_used=used,
        )

    def command(self, spec: EngineSpec, socket: Path, folder: Path) -> Sequence[str]:
        """Write the child's spec and return its command line."""
        files = _model_files(spec)
        child = ChildSpec(
            socket=str(socket),
            model_files=files,
            served_name=spec.served_name,
            slots=spec.slots,
            **LlamaCppOptions.parse(spec.options).model_dump(),
        )
        return [
            sys.executable, "-m", _CHILD_MODULE, "--spec",
            str(write_spec(folder, "spec.json", asdict(child))),
        ]  # fmt: skip

    async def suspend(self, handle: EngineHandle, *, depth: int = 1) -> SuspendResult:  # noqa: ARG002 - it knows one way only
        """Let the engine give its memory back and stop itself; both are looked at from outside.

        An engine that still works, e.g. for a client that has left, keeps its key-value cache and goes on after the wake.
        """
        began = time.perf_counter()
        before = resident(handle.pid)
        handle.process.send(SLEEP if await _idle(handle) else SLEEP_BUSY)
        await until_stopped(handle, (), limit_s=_SUSPEND_LIMIT_S, look_s=_SUSPEND_LOOK_S)
        after = resident(handle.pid)
        return SuspendResult(
            resident_before=before.total,
            resident_after=after.total,
            depth="stopped",
            kept=_kept(handle.spec),
            ms=(time.perf_counter() - began) * 1000,
        )


def _kept(spec: EngineSpec) -> str:
    """Say how much of the weights still lies in the page cache, e.g. for another instance of the same model."""
    cached = [page_cache_bytes(Path(file)) for file in _model_files(spec)]
    bytes_kept = sum(part or 0 for part in cached)
    return f"{bytes_kept} bytes of the weights stay in the page cache" if bytes_kept else ""


async def _kv_used(handle: EngineHandle, deadline_s: float) -> float | None:
    """Return the share of all slots' contexts that running requests hold; None where the engine does not say."""
    try:
        async with asyncio.timeout(deadline_s):
            answer = await request(handle.address, "GET", "/slots")
        slots: Any = answer.json()
        # What an idle slot keeps of its last prompt is no load: it gives way to the next request.
        held = sum(int(slot.get("n_prompt_tokens", 0)) for slot in slots if slot.get("is_processing"))
        room = sum(int(slot["n_ctx"]) for slot in slots)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):  # whatever the answer is, it says nothing
        return None
    return min(1.0, held / room) if room > 0 else None


async def _idle(handle: EngineHandle) -> bool:
    """Return whether no slot works. Looks twice, as a departed client is noticed after a quiet second only."""
    for wait in (_DEPARTURE_NOTICED_S, 0.0):
        try:
            async with asyncio.timeout(_SLOTS_LIMIT_S):
                answer = await request(handle.address, "GET", "/slots")
        except (OSError, ValueError):  # an engine that does not answer is treated as one that works
            return False
        slots = answer.json()
        if answer.status == 200 and isinstance(slots, list) and not any(slot.get("is_processing") for slot in slots):
            return True
        await asyncio.sleep(wait)
    return False


def _model_files(spec: EngineSpec) -> tuple[str, ...]:
    """Return the GGUF files with their real paths, as the kernel names them in a mapping; the first shard first."""
    files = sorted(name for name in spec.model_files if name.endswith(".gguf"))
    if not files:
        raise ConfigurationError(
            f"model of instance {spec.instance} has no .gguf file (found: {', '.join(spec.model_files[:5])})",
            remedy="register a GGUF artifact for llama.cpp",
        )
    return tuple(str((spec.model_dir / name).resolve()) for name in files)
