"""The options of TensorRT-LLM that a model may set, and the configuration file that they make. Pure.

No option names a file or a program: a model's options come from a tenant.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from standby.runtime.engines.options import EngineOptions
from standby.runtime.engines.tensorrt_llm_config import (
    CudaGraphConfig,
    KvCacheConfig,
    LoraConfig,
    MtpConfig,
    NGramConfig,
    SchedulerConfig,
    TorchCompileConfig,
    TrtLlmConfig,
)

_RECORDS_KEPT = 16
"""Iteration records between two looks at the load; the newest alone counts, and a thousand of them are a megabyte."""


class TensorRtLlmOptions(EngineOptions):
    """Engine options of a model served by TensorRT-LLM. Sizes are per engine, not per slot."""

    engine = "TensorRT-LLM"

    context: int | None = Field(default=None, ge=64, le=10_000_000, description="tokens of one request; unset: the model's own")
    batch_tokens: int = Field(default=8192, ge=64, le=1_048_576, description="tokens computed in one step")
    tensor_parallel: int = Field(default=1, ge=1, le=64, description="devices that share each layer")
    pipeline_parallel: int = Field(default=1, ge=1, le=64, description="devices that share the layers out")
    expert_parallel: int | None = Field(default=None, ge=1, le=64, description="devices that share experts out")
    kv_tokens: int | None = Field(default=None, ge=1, le=1_000_000_000, description="key-value cache in tokens")
    kv_mib: int | None = Field(default=None, ge=1, le=16_777_216, description="key-value cache in MiB of device memory")
    kv_fraction: float = Field(
        default=0.8, ge=0.01, le=0.99, description="of the device memory that is free after loading, unless kv_mib or kv_tokens"
    )
    kv_host_mib: int = Field(default=0, ge=0, le=16_777_216, description="host memory for blocks that leave the device")
    kv_type: Literal["auto", "fp8", "nvfp4"] = Field(default="auto", description="number type of the key-value cache")
    kv_block_tokens: Literal[16, 32, 64, 128] | None = Field(default=None, description="tokens of one block")
    prefix_cache: bool = Field(default=True, description="keep blocks of earlier requests for prompts that begin alike")
    cuda_graphs: str = Field(
        default="auto", description="auto, off, or the batch sizes to capture, e.g. 1,2,4: fewer are a faster start"
    )
    compile: bool = Field(default=False, description="compile the model with torch; minutes at the start")
    chunked_prefill: bool = Field(default=False, description="take long prompts in steps")
    autotune: bool = Field(default=True, description="try kernels at the start")
    scheduler: Literal["safe", "full"] = Field(
        default="safe", description="safe: never preempts; full: fills the cache and preempts when it overflows"
    )
    priority: bool = Field(default=False, description="serve waiting requests by priority; not in version 1.2")
    batch_wait_ms: int = Field(default=0, ge=0, le=1000, description="wait for more requests before a step")
    speculation: Literal["off", "ngram", "mtp"] = Field(default="off", description="guess tokens ahead")
    speculation_tokens: int = Field(default=4, ge=1, le=32, description="tokens guessed at once")
    lora_rank: int = Field(default=0, ge=0, le=512, description="largest rank of adapters; 0: no adapters")
    lora_adapters: int = Field(default=4, ge=1, le=1024, description="adapters on the device at once")
    iteration_stats: bool = Field(default=True, description="tell how busy it is; without it nobody knows")
    request_metrics: bool = Field(default=False, description="Prometheus metrics of requests")

    @field_validator("cuda_graphs")
    @classmethod
    def _known_graphs(cls, text: str) -> str:
        if text not in ("auto", "off"):
            sizes = [part.strip() for part in text.split(",")]
            if not all(part.isdigit() and 1 <= int(part) <= 4096 for part in sizes):
                raise ValueError("is auto, off, or batch sizes from 1 to 4096 joined by commas")
        return text

    @property
    def devices(self) -> int:
        """How many devices it needs."""
        return self.tensor_parallel * self.pipeline_parallel

    def config(self, slots: int) -> TrtLlmConfig:
        """Return the configuration file of an engine that serves ``slots`` requests at once."""
        chosen: dict[str, Any] = {
            "max_batch_size": slots,
            "max_num_tokens": self.batch_tokens,
            "max_seq_len": self.context,
            "tensor_parallel_size": self.tensor_parallel,
            "pipeline_parallel_size": self.pipeline_parallel,
            "moe_expert_parallel_size": self.expert_parallel,
            "kv_cache_config": self._kv_cache(),
            "scheduler_config": self._scheduler(),
            "speculative_config": self._speculation(),
            "torch_compile_config": TorchCompileConfig() if self.compile else None,
            "enable_chunked_prefill": self.chunked_prefill or None,
            "enable_iter_perf_stats": self.iteration_stats,
            "iter_stats_max_iterations": _RECORDS_KEPT if self.iteration_stats else None,
            "return_perf_metrics": self.request_metrics or None,
            "batch_wait_timeout_ms": self.batch_wait_ms or None,
            "enable_autotuner": self.autotune,
            **self._lora(),
        }
        set_ones = {name: value for name, value in chosen.items() if value is not None}
        return TrtLlmConfig(**set_ones, **self._graphs())

    def _kv_cache(self) -> KvCacheConfig:
        sized = self.kv_mib is not None or self.kv_tokens is not None
        chosen: dict[str, Any] = {
            "enable_block_reuse": self.prefix_cache,
            "max_tokens": self.kv_tokens,
            # Explicit bytes do not depend on what neighbours on the device do while this engine starts.
            "max_gpu_total_bytes": None if self.kv_mib is None else self.kv_mib * 2**20,
            "free_gpu_memory_fraction": None if sized else self.kv_fraction,
            "host_cache_size": self.kv_host_mib * 2**20 or None,
            "dtype": self.kv_type,
            "tokens_per_block": self.kv_block_tokens,
        }
        return KvCacheConfig(**{name: value for name, value in chosen.items() if value is not None})

    def _scheduler(self) -> SchedulerConfig:
        policy: Any = "GUARANTEED_NO_EVICT" if self.scheduler == "safe" else "MAX_UTILIZATION"
        if self.priority:
            return SchedulerConfig(capacity_scheduler_policy=policy, waiting_queue_policy="priority")
        return SchedulerConfig(capacity_scheduler_policy=policy)

    def _speculation(self) -> NGramConfig | MtpConfig | None:
        # The type is named although it is the default: only what was set is written.
        match self.speculation:
            case "ngram":
                return NGramConfig(decoding_type="NGram", max_draft_len=self.speculation_tokens)
            case "mtp":
                return MtpConfig(decoding_type="MTP", num_nextn_predict_layers=self.speculation_tokens)
            case "off":
                return None

    def _lora(self) -> dict[str, Any]:
        if not self.lora_rank:
            return {}
        room = LoraConfig(max_lora_rank=self.lora_rank, max_loras=self.lora_adapters, max_cpu_loras=max(self.lora_adapters, 16))
        return {"enable_lora": True, "lora_config": room}

    def _graphs(self) -> dict[str, CudaGraphConfig | None]:
        match self.cuda_graphs:
            case "auto":
                return {}
            case "off":
                return {"cuda_graph_config": None}
            case sizes:
                chosen = tuple(sorted({int(size) for size in sizes.split(",")}))
                return {"cuda_graph_config": CudaGraphConfig(batch_sizes=chosen, enable_padding=True)}
