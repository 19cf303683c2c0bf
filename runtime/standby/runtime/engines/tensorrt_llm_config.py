"""The configuration file of ``trtllm-serve``: our own strict mirror of the keys that we may write.

TensorRT-LLM refuses unknown keys, but only after a minute of imports, and it cannot be imported without a GPU driver:
so each value is checked here first. Names and meanings are those of its ``llmapi/llm_args.py``. Only what is set is
written. JSON is YAML, as long as no number needs an exponent without a point, which YAML 1.1 takes for text; the
bounds of ``tensorrt_llm_options`` leave none.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from standby.domain.values import Value

KvType = Literal["auto", "fp8", "nvfp4"]
Positive = Field(default=None, ge=1)


class CudaGraphConfig(Value):
    """Graphs are captured for decoding only, each up to about 200 MB of device memory."""

    batch_sizes: tuple[int, ...] | None = None
    max_batch_size: int | None = Positive
    enable_padding: bool = False


class KvCacheConfig(Value):
    """Sizes in tokens or bytes, where nothing is set a fraction of what is free after loading."""

    enable_block_reuse: bool = True
    max_tokens: int | None = Positive
    free_gpu_memory_fraction: float | None = Field(default=None, gt=0, lt=1)
    max_gpu_total_bytes: int | None = Positive
    host_cache_size: int | None = Field(default=None, ge=0)
    secondary_offload_min_priority: int | None = Field(default=None, ge=0, le=100)
    dtype: KvType = "auto"
    tokens_per_block: int | None = Positive
    event_buffer_max_size: int | None = Field(default=None, ge=0)


class SchedulerConfig(Value):
    """``waiting_queue_policy`` is not in version 1.2."""

    capacity_scheduler_policy: Literal["GUARANTEED_NO_EVICT", "MAX_UTILIZATION"] | None = None
    waiting_queue_policy: Literal["fcfs", "priority"] | None = None


class NGramConfig(Value):
    """Guesses from the request's own text; needs no second model."""

    decoding_type: Literal["NGram"] = "NGram"
    max_draft_len: int = Field(ge=1, le=32)
    max_matching_ngram_size: int = Field(default=2, ge=1, le=32)


class MtpConfig(Value):
    """Guesses with the model's own extra layers."""

    decoding_type: Literal["MTP"] = "MTP"
    num_nextn_predict_layers: int = Field(ge=1, le=32)


class LoraConfig(Value):
    """Room for adapters."""

    max_lora_rank: int = Field(ge=1, le=512)
    max_loras: int = Field(ge=1, le=1024)
    max_cpu_loras: int = Field(ge=1, le=4096)


class TorchCompileConfig(Value):
    """Compilation by torch; slow at the start."""

    enable_piecewise_cuda_graph: bool = False
    capture_num_tokens: tuple[int, ...] | None = None


class TrtLlmConfig(Value):
    """The whole file. ``cuda_graph_config: null`` turns graphs off, its absence leaves the engine's default."""

    max_batch_size: int | None = Positive
    max_num_tokens: int | None = Positive
    max_seq_len: int | None = Positive
    tensor_parallel_size: int | None = Positive
    pipeline_parallel_size: int | None = Positive
    moe_expert_parallel_size: int | None = Positive
    kv_cache_config: KvCacheConfig | None = None
    cuda_graph_config: CudaGraphConfig | None = None
    scheduler_config: SchedulerConfig | None = None
    speculative_config: NGramConfig | MtpConfig | None = Field(default=None, discriminator="decoding_type")
    enable_lora: bool | None = None
    lora_config: LoraConfig | None = None
    torch_compile_config: TorchCompileConfig | None = None
    load_format: Literal["auto", "dummy", "vision_only"] | None = None
    checkpoint_format: str | None = None
    enable_chunked_prefill: bool | None = None
    enable_iter_perf_stats: bool | None = None
    iter_stats_max_iterations: int | None = Positive
    return_perf_metrics: bool | None = None
    batch_wait_timeout_ms: float | None = Field(default=None, ge=0)
    enable_autotuner: bool | None = None

    def as_yaml(self) -> str:
        """Return the file's text."""
        return self.model_dump_json(exclude_unset=True, indent=2) + "\n"
