"""The options of llama.cpp that a model may set: an allow-list with types, bounds and meanings."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from standby.runtime.engines.options import EngineOptions

CacheType = Literal["f16", "bf16", "f32", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]


class LlamaCppOptions(EngineOptions):
    """Engine options of a model served by llama.cpp. Context is per slot: a slot is one request at a time."""

    engine = "llama.cpp"

    context: int = Field(default=2048, ge=64, le=1_048_576, description="tokens per slot, capped by the model's own")
    threads: int = Field(default=0, ge=0, le=1024, description="of generation; 0: half of the processors")
    batch: int = Field(default=2048, ge=1, le=65_536, description="tokens of prompt taken in one logical batch")
    micro_batch: int = Field(default=512, ge=1, le=65_536, description="tokens of prompt computed at once")
    kv_type: CacheType = Field(default="f16", description="number type of the key-value cache")
    prompt_cache_mib: int = Field(default=64, ge=0, le=1_048_576, description="memory for prompts of earlier requests; 0: none")
    flash_attention: Literal["auto", "on", "off"] = Field(default="auto", description="fused attention, where it is faster")
    repack: bool = Field(
        default=False,
        description="copy the weights into a faster layout; such a copy is not given back while asleep",
    )
    keep_cached: bool = Field(
        default=False,
        description="while asleep leave the weights in the page cache, from which the kernel may take them at any time",
    )
    verbosity: int = Field(default=2, ge=0, le=5, description="2: warnings and errors; 3 and above: chatty")
