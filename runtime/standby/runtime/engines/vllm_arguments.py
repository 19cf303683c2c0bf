"""Turns what is asked of an instance into vLLM's own arguments and environment. Pure but for reading the model's config."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from standby.domain.errors import ConfigurationError
from standby.runtime.engines.base import EngineSpec
from standby.runtime.engines.vllm_options import VllmOptions
from standby.runtime.engines.vllm_profile import ENVIRONMENT

THREADS_VARIABLE: Final = "OMP_NUM_THREADS"
_MIB: Final = 2**20
_BLOCK_TOKENS: Final = 128  # of vLLM's CPU backend; a GPU's are smaller, so that this is an upper bound
_KV_BYTES_UNKNOWN: Final = 128 * 1024  # per token, where the configuration does not tell: a model of 8 B with grouped heads
_NUMBER_BYTES: Final = 2


class ModelConfig:
    """What the model's ``config.json`` says; text models within a larger one (``text_config``) are looked into."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        inner = content.get("text_config")
        self._content = {**content, **inner} if isinstance(inner, dict) else dict(content)

    @classmethod
    def read(cls, folder: Path) -> ModelConfig:
        """Read it. Raises ConfigurationError where there is none; what cannot be read is left to vLLM to complain of."""
        path = folder / "config.json"
        try:
            content = json.loads(path.read_bytes())
        except FileNotFoundError as error:
            raise ConfigurationError(
                f"model folder {folder} has no config.json", remedy="register a model in the Hugging Face layout for vLLM"
            ) from error
        except (OSError, ValueError):
            content = {}
        return cls(content if isinstance(content, dict) else {})

    @property
    def longest(self) -> int | None:
        """Tokens that the model was made for; None: it does not say."""
        value = self._content.get("max_position_embeddings")
        return value if isinstance(value, int) and value > 0 else None

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of key-value cache for one token in 16 bits, over all layers."""
        try:
            layers, heads = int(self._content["num_hidden_layers"]), int(self._content["num_attention_heads"])
            size = int(self._content.get("head_dim") or int(self._content["hidden_size"]) // heads)
            kv_heads = int(self._content.get("num_key_value_heads") or heads)
        except (KeyError, TypeError, ValueError):
            return _KV_BYTES_UNKNOWN
        return 2 * layers * kv_heads * size * _NUMBER_BYTES


def kv_bytes(options: VllmOptions, slots: int, context: int, per_token: int) -> int:
    """Return the bytes of the key-value cache: as asked, or whole blocks for every slot at full context and one to spare."""
    if options.kv_cache_mib:
        return options.kv_cache_mib * _MIB
    blocks = -(-context // _BLOCK_TOKENS) * slots + 1
    per_block = _BLOCK_TOKENS * per_token // (2 if options.kv_type.startswith("fp8") else 1)
    return -(-blocks * per_block // _MIB) * _MIB


def context_of(options: VllmOptions, config: ModelConfig) -> int:
    """Return the tokens of one request."""
    return min(options.context, config.longest or options.context)


def arguments(spec: EngineSpec, socket: Path, *, on_gpu: bool) -> list[str]:
    """Return vLLM's arguments, each its own element. Raises InvalidInput, ConfigurationError."""
    options, config = VllmOptions.parse(spec.options), ModelConfig.read(spec.model_dir)
    context = context_of(options, config)
    return [
        "--model", str(spec.model_dir.resolve()),
        "--served-model-name", spec.served_name,
        "--uds", str(socket),
        "--max-num-seqs", str(spec.slots),
        "--max-model-len", str(context),
        "--kv-cache-memory-bytes", str(kv_bytes(options, spec.slots, context, config.kv_bytes_per_token)),
        "--dtype", options.dtype,
        "--kv-cache-dtype", options.kv_type,
        "--seed", str(options.seed),
        "--enable-prefix-caching" if options.prefix_caching else "--no-enable-prefix-caching",
        "--scheduling-policy", "priority" if options.priority else "fcfs",
        "--disable-uvicorn-access-log", "--disable-fastapi-docs", "--no-use-tqdm-on-load", "--uvicorn-log-level", "warning",
        *_device(options, on_gpu=on_gpu),
        *_loading(options),
        *_extras(options),
        *_profiler(options, socket.parent),
    ]  # fmt: skip


def traces_folder(folder: Path) -> Path:
    """Return where torch's profiler writes, below the folder of one run."""
    return folder / "torch"


def environment(spec: EngineSpec, *, on_gpu: bool) -> dict[str, str]:
    """Return what the engine must see in its environment beyond what every engine sees."""
    found = dict(ENVIRONMENT)
    if on_gpu:
        found["VLLM_SERVER_DEV_MODE"] = "1"  # without it there are no routes to sleep and wake
        if spec.devices:
            found["CUDA_VISIBLE_DEVICES"] = ",".join(spec.devices)
    else:
        found[THREADS_VARIABLE] = str(threads(VllmOptions.parse(spec.options), spec.cores))
        found["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # two engines would be bound to the same processors
        # What is compiled ahead is written there, but cannot be read again (0.32): each start would compile anew. Without it
        # the compiler's own cache is used, and a second start takes a fifth of the first.
        found["VLLM_USE_AOT_COMPILE"] = "0"
    if spec.cache_dir is not None:
        found |= {
            "VLLM_CACHE_ROOT": str(spec.cache_dir),
            "TRITON_CACHE_DIR": str(spec.cache_dir / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(spec.cache_dir / "inductor"),
        }
    return found


def threads(options: VllmOptions, cores: Sequence[int]) -> int:
    """Return how many threads compute. One processor is left to the API process, as vLLM itself does.

    Without it, threads that wait for each other wait for one that the API process has pushed aside.
    """
    available = len(cores) or len(os.sched_getaffinity(0))
    return options.threads or max(1, available - 1)


def _device(options: VllmOptions, *, on_gpu: bool) -> list[str]:
    found = ["--enforce-eager"] if options.eager(on_gpu=on_gpu) else []
    if not on_gpu:
        return [*found, "--distributed-executor-backend", "uni"]
    if not found:
        found = ["--cudagraph-capture-sizes", *map(str, options.captured)]
    return [*found, "--enable-sleep-mode", "--tensor-parallel-size", str(options.devices)]


def _loading(options: VllmOptions) -> list[str]:
    found = ["--load-format", options.load_format]
    return found if options.load_strategy == "auto" else [*found, "--safetensors-load-strategy", options.load_strategy]


def _extras(options: VllmOptions) -> list[str]:
    found: list[str] = []
    if options.max_batched_tokens:
        found += ["--max-num-batched-tokens", str(options.max_batched_tokens)]
    if options.enable_lora:
        found += ["--enable-lora", "--max-loras", str(options.max_loras), "--max-lora-rank", str(options.max_lora_rank)]
    if options.quantization != "none":
        found += ["--quantization", options.quantization]
    if options.speculative != "none":
        found += ["--speculative-config", json.dumps(_speculation(options))]
    return found


def _profiler(options: VllmOptions, folder: Path) -> list[str]:
    """The profiler is made at the start and does nothing before it is told to; without it there are no routes for it.

    Python's stacks are left to py-spy: with them vLLM's own table of a two seconds' trace took more than a minute (0.32,
    on a processor), in which the engine served nobody.
    """
    if not options.profile:
        return []
    content = {
        "profiler": "torch",
        "torch_profiler_dir": str(traces_folder(folder)),
        "torch_profiler_with_stack": False,
        "torch_profiler_dump_cuda_time_total": False,
        "ignore_frontend": True,
    }
    return ["--profiler-config", json.dumps(content)]


def _speculation(options: VllmOptions) -> dict[str, str | int]:
    content: dict[str, str | int] = {"method": options.speculative, "num_speculative_tokens": options.speculative_tokens}
    return {**content, "prompt_lookup_max": options.ngram_max} if options.speculative == "ngram" else content
