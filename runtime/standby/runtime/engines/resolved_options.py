"""What a model's options mean, those that it leaves out too: their defaults change from one version of standby to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from standby.domain.errors import InvalidInput
from standby.domain.model import EngineKind
from standby.domain.values import Value
from standby.runtime.engines.llama_cpp_options import LlamaCppOptions
from standby.runtime.engines.options import Options
from standby.runtime.engines.tensorrt_llm_options import TensorRtLlmOptions
from standby.runtime.engines.vllm_options import VllmOptions

_PARSERS: Final[Mapping[EngineKind, Callable[[Options], Value]]] = MappingProxyType(
    {
        EngineKind.LLAMA_CPP: LlamaCppOptions.parse,
        EngineKind.TENSORRT_LLM: TensorRtLlmOptions.parse,
        EngineKind.VLLM: VllmOptions.parse,
    }
)


def resolved(engine: EngineKind, options: Options) -> Mapping[str, object]:
    """Return every option with its value; of an engine without defaults, or of options that are not valid, what was given."""
    parse = _PARSERS.get(engine)
    try:
        return dict(options) if parse is None else parse(options).model_dump()
    except InvalidInput:  # such a model is never started; its name must not fail
        return dict(options)
