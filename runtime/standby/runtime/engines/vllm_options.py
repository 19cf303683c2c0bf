"""The options of vLLM that a model may set: an allow-list with types, bounds and meanings.

No option names a path, and none lets a model bring code of its own: ``trust_remote_code`` does not exist here.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, Literal

from pydantic import Field, field_validator

from standby.runtime.engines.options import EngineOptions

Quantization = Literal[
    "none", "awq", "awq_marlin", "gptq", "gptq_marlin", "compressed-tensors", "fp8", "modelopt", "modelopt_fp4", "mxfp4",
    "torchao", "quark", "inc", "moe_wna16", "experts_int8",
]  # fmt: skip
LoadFormat = Literal["auto", "safetensors", "runai_streamer", "fastsafetensors", "instanttensor"]

NEEDED_PACKAGES: Final = MappingProxyType(
    {
        "runai_streamer": "runai-model-streamer",
        "fastsafetensors": "fastsafetensors",
        "instanttensor": "instanttensor",
        "suffix": "arctic-inference",
    }
)
"""What must be installed beside vLLM for a value of an option."""

_LORA_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)


class VllmOptions(EngineOptions):
    """Engine options of a model served by vLLM."""

    engine = "vLLM"

    context: int = Field(default=2048, ge=64, le=10_485_760, description="tokens per request, capped by the model's own")
    kv_cache_mib: int = Field(
        default=0, ge=0, le=4_194_304, description="memory of the key-value cache; 0: as much as all slots need at full context"
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(default="auto", description="number type of the weights")
    kv_type: Literal["auto", "fp8", "fp8_e4m3", "fp8_e5m2"] = Field(default="auto", description="of the key-value cache")
    enforce_eager: bool | None = Field(
        default=None, description="run without compiled kernels and graphs; unset: on a processor yes, on a GPU no"
    )
    capture_sizes: str = Field(
        default="1,2,4,8",
        description="batch sizes whose graphs are captured on a GPU, ascending; each costs time at start and memory",
    )
    load_strategy: Literal["auto", "lazy", "eager", "prefetch"] = Field(
        default="auto", description="how safetensors are read: mapped, read whole, or brought into the page cache first"
    )
    load_format: LoadFormat = Field(default="auto", description="which loader reads the weights")
    prefix_caching: bool = Field(default=True, description="keep the key-value cache of prompts for those that begin alike")
    priority: bool = Field(default=False, description="serve waiting requests by their priority, lower numbers first")
    max_batched_tokens: int = Field(default=0, ge=0, le=1_048_576, description="tokens computed in one step; 0: vLLM's choice")
    enable_lora: bool = Field(default=False, description="make room for adapters")
    max_loras: int = Field(default=1, ge=1, le=256, description="adapters in one batch")
    max_lora_rank: int = Field(default=16, ge=1, le=512, description=f"one of {_LORA_RANKS}")
    speculative: Literal["none", "ngram", "suffix"] = Field(
        default="none", description="guess tokens from the prompt (ngram) or from earlier answers (suffix)"
    )
    speculative_tokens: int = Field(default=4, ge=1, le=64, description="tokens guessed at once")
    ngram_max: int = Field(default=4, ge=1, le=32, description="longest run of tokens that is looked up")
    quantization: Quantization = Field(default="none", description="none: as the model's configuration says")
    seed: int = Field(default=0, ge=0, le=2**31 - 1, description="of sampling, for requests that bring none")
    threads: int = Field(default=0, ge=0, le=1024, description="of a processor engine; 0: all but one of its processors")
    devices: int = Field(default=1, ge=1, le=64, description="GPUs over which each layer is spread")
    profile: bool = Field(
        default=False, description="be ready to trace kernels and operators with torch's profiler, for `standby profile`"
    )

    @field_validator("capture_sizes")
    @classmethod
    def _ascending(cls, text: str) -> str:
        sizes = text.split(",")
        if not all(size.strip().isdigit() and 1 <= int(size) <= 8192 for size in sizes):
            raise ValueError("numbers from 1 to 8192, separated by commas")
        if sorted({int(size) for size in sizes}) != [int(size) for size in sizes]:
            raise ValueError("each number larger than the one before")
        return text

    @field_validator("max_lora_rank")
    @classmethod
    def _known_rank(cls, rank: int) -> int:
        if rank not in _LORA_RANKS:
            raise ValueError(f"one of {', '.join(map(str, _LORA_RANKS))}")
        return rank

    @property
    def captured(self) -> tuple[int, ...]:
        """The batch sizes of ``capture_sizes``."""
        return tuple(int(size) for size in self.capture_sizes.split(","))

    @property
    def needed_packages(self) -> tuple[str, ...]:
        """Packages that these options need beside vLLM."""
        chosen = (self.load_format, self.speculative)
        return tuple(NEEDED_PACKAGES[value] for value in chosen if value in NEEDED_PACKAGES)

    def eager(self, *, on_gpu: bool) -> bool:
        """Return whether nothing is compiled or captured."""
        return (not on_gpu) if self.enforce_eager is None else self.enforce_eager
