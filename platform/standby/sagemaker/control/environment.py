"""A container's environment, as LMI, vLLM's and TGI's containers know it, mapped onto our engines' options. Pure.

An allow-list: what is not in it is kept as a note and changes nothing, and code that a model brings is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from standby.domain.errors import InvalidInput
from standby.domain.model import EngineKind
from standby.sagemaker.control import policy
from standby.sagemaker.control.images import engine_of

Option = str | int | float | bool

ENGINE: Final = "STANDBY_ENGINE"
CREDENTIALS: Final = "STANDBY_CREDENTIALS"
OPTION_PREFIX: Final = "STANDBY_OPTION_"
# The dialect of answers, read by the runtime.
OUTPUT: Final = "STANDBY_OUTPUT"
_OURS: Final = frozenset({ENGINE, CREDENTIALS, OUTPUT})

MOST_SLOTS: Final = 1024
_PREFIXES: Final = ("OPTION_", "SM_VLLM_")
_TRUE: Final = frozenset({"true", "1", "yes", "on"})
_FALSE: Final = frozenset({"false", "0", "no", "off"})

# What containers call it (after OPTION_ or SM_VLLM_) → what it means.
_MEANINGS: Final[Mapping[str, str]] = {
    "MAX_MODEL_LEN": "context",
    "DTYPE": "dtype",
    "TENSOR_PARALLEL_DEGREE": "tensor_parallel",
    "TENSOR_PARALLEL_SIZE": "tensor_parallel",
    "PIPELINE_PARALLEL_DEGREE": "pipeline_parallel",
    "PIPELINE_PARALLEL_SIZE": "pipeline_parallel",
    "ENFORCE_EAGER": "eager",
    "ENABLE_PREFIX_CACHING": "prefix_cache",
    "QUANTIZE": "quantization",
    "QUANTIZATION": "quantization",
    "KV_CACHE_DTYPE": "kv_type",
    "MAX_NUM_BATCHED_TOKENS": "batch_tokens",
    "MAX_ROLLING_BATCH_PREFILL_TOKENS": "batch_tokens",
    "MAX_ROLLING_BATCH_SIZE": "slots",
    "MAX_NUM_SEQS": "slots",
    "ENABLE_LORA": "lora",
    "MAX_LORAS": "lora_batch",
    "MAX_LORA_RANK": "lora_rank",
    "SEED": "seed",
    "LOAD_FORMAT": "load_format",
}
_PLAIN: Final[Mapping[str, str]] = {
    "TENSOR_PARALLEL_DEGREE": "tensor_parallel",
    "SM_NUM_GPUS": "tensor_parallel",
    "MAX_TOTAL_TOKENS": "context",
    "HF_MODEL_QUANTIZE": "quantization",
}
_MODEL_IDS: Final = ("HF_MODEL_ID", "OPTION_MODEL_ID", "SM_VLLM_MODEL")
_ROLLING_BATCH: Final[Mapping[str, EngineKind]] = {
    "vllm": EngineKind.VLLM,
    "lmi-dist": EngineKind.VLLM,
    "trtllm": EngineKind.TENSORRT_LLM,
}


def _one_of(*words: str, **others: str) -> Callable[[str], str]:
    known = {**{word: word for word in words}, **others}

    def choose(text: str) -> str:
        if text.lower() not in known:
            raise ValueError(f"one of {', '.join(sorted(known))}")
        return known[text.lower()]

    return choose


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 2**31:
        raise ValueError("a whole number above 0")
    return int(text)


def _truth(text: str) -> bool:
    if text.lower() not in _TRUE | _FALSE:
        raise ValueError("true or false")
    return text.lower() in _TRUE


_Converter = Callable[[str], Option]
_DTYPE: Final = _one_of(
    "auto", "bfloat16", "float16", "float32", bf16="bfloat16", fp16="float16", half="float16", fp32="float32", float="float32"
)
_VLLM: Final[Mapping[str, tuple[str, _Converter]]] = {
    "context": ("context", _whole),
    "dtype": ("dtype", _DTYPE),
    "tensor_parallel": ("devices", _whole),
    "eager": ("enforce_eager", _truth),
    "prefix_cache": ("prefix_caching", _truth),
    "quantization": ("quantization", _one_of("awq", "gptq", "fp8", "compressed-tensors", "mxfp4", "modelopt")),
    "kv_type": ("kv_type", _one_of("auto", "fp8", "fp8_e4m3", "fp8_e5m2")),
    "batch_tokens": ("max_batched_tokens", _whole),
    "lora": ("enable_lora", _truth),
    "lora_batch": ("max_loras", _whole),
    "lora_rank": ("max_lora_rank", _whole),
    "seed": ("seed", _whole),
    "load_format": ("load_format", _one_of("auto", "safetensors", "runai_streamer", "fastsafetensors")),
}
_TENSORRT_LLM: Final[Mapping[str, tuple[str, _Converter]]] = {
    "context": ("context", _whole),
    "tensor_parallel": ("tensor_parallel", _whole),
    "pipeline_parallel": ("pipeline_parallel", _whole),
    "prefix_cache": ("prefix_cache", _truth),
    "kv_type": ("kv_type", _one_of("auto", "fp8", "nvfp4")),
    "batch_tokens": ("batch_tokens", _whole),
    "lora_rank": ("lora_rank", _whole),
}
_LLAMA_CPP: Final[Mapping[str, tuple[str, _Converter]]] = {"context": ("context", _whole)}
_BY_ENGINE: Final[Mapping[EngineKind, Mapping[str, tuple[str, _Converter]]]] = {
    EngineKind.VLLM: _VLLM,
    EngineKind.TENSORRT_LLM: _TENSORRT_LLM,
    EngineKind.LLAMA_CPP: _LLAMA_CPP,
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a container's environment asks for.

    ``engine`` is an order, ``hint`` gives way; ``meant`` is told for any engine, ``options`` for ours by their own names;
    ``policy`` are fields of the scale policy as text; ``credentials`` names keys that the tenant has stored.
    """

    engine: EngineKind | None = None
    hint: EngineKind | None = None
    meant: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Option] = field(default_factory=dict)
    policy: Mapping[str, str] = field(default_factory=dict)
    source_uri: str | None = None
    credentials: str | None = None
    notes: tuple[str, ...] = ()


def read_environment(environment: Mapping[str, str], image: str = "") -> Wanted:
    """Return what the environment asks for. Raises InvalidInput for remote code, and for what is ours and wrong."""
    refuse_remote_code(environment)
    meant, notes = _meant(environment)
    uri, more = _source(environment)
    return Wanted(
        engine=_engine(environment),
        hint=_ROLLING_BATCH.get(environment.get("OPTION_ROLLING_BATCH", "").lower()) or engine_of(image),
        meant=meant,
        options=_own_options(environment),
        policy=_policy(environment, meant),
        source_uri=uri,
        credentials=environment.get(CREDENTIALS),
        notes=(*notes, *more),
    )


def with_properties(environment: Mapping[str, str], text: str) -> dict[str, str]:
    """Return the environment as a ``serving.properties`` beside the model changes it: its ``option.*`` win."""
    merged = dict(environment)
    for line in text.splitlines():
        name, separator, value = line.strip().partition("=")
        name = name.strip()
        if not separator or name.startswith(("#", "!")):
            continue
        if name.startswith("option."):
            merged["OPTION_" + name.removeprefix("option.").upper()] = value.strip()
    return merged


def engine_options(wanted: Wanted, engine: EngineKind) -> tuple[dict[str, Option], tuple[str, ...]]:
    """Return the options of ``engine`` and what of the environment it has no option for."""
    options: dict[str, Option] = {}
    notes: list[str] = []
    known = _BY_ENGINE.get(engine, {})
    for meaning, text in wanted.meant.items():
        if meaning == "slots":
            continue
        if meaning not in known:
            notes.append(f"{engine.value} has nothing for {meaning}={text[:60]}")
            continue
        name, convert = known[meaning]
        try:
            options[name] = convert(text)
        except ValueError as error:
            notes.append(f"{meaning}={text[:60]!r} is left out: {engine.value} takes {error}")
    return {**options, **wanted.options}, tuple(notes)


def refuse_remote_code(environment: Mapping[str, str]) -> None:
    """Refuse a model that wants to bring its own code. Raises InvalidInput naming the variable."""
    for name, value in environment.items():
        if name.upper().endswith("REMOTE_CODE") and value.strip().lower() in _TRUE:
            raise InvalidInput(
                f"{name[:80]}={value[:20]!r}: code that a model brings is never run here",
                remedy="leave it out; models whose architecture the engines know need none",
            )


def _meant(environment: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    meant: dict[str, str] = {}
    notes: list[str] = []
    for name, value in sorted(environment.items()):
        prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), None)
        meaning = _PLAIN.get(name) if prefix is None else _MEANINGS.get(name.removeprefix(prefix))
        if meaning is not None:
            meant.setdefault(meaning, value.strip())
        elif prefix is not None and name not in _MODEL_IDS and not name.endswith(("REMOTE_CODE", "ROLLING_BATCH")):
            notes.append(f"{name[:80]} is not used here")
    return meant, tuple(notes)


def _source(environment: Mapping[str, str]) -> tuple[str | None, tuple[str, ...]]:
    notes = []
    for name in _MODEL_IDS:
        value = environment.get(name, "").strip()
        if value.startswith("s3://"):
            return value if value.endswith("/") or "." in value.rpartition("/")[2] else value + "/", ()
        if value and not value.startswith("/opt/ml/"):
            notes.append(
                f"{name}={value[:120]!r} names a model of a hub, and models are read from S3 only: use s3://bucket/prefix/"
            )
    return None, tuple(notes)


def _engine(environment: Mapping[str, str]) -> EngineKind | None:
    text = environment.get(ENGINE)
    if text is None:
        return None
    try:
        return EngineKind(text)
    except ValueError:
        known = ", ".join(kind.value for kind in EngineKind if kind is not EngineKind.FAKE)
        raise InvalidInput(f"{ENGINE}={text[:60]!r} is no engine", remedy=f"known are: {known}") from None


def _own_options(environment: Mapping[str, str]) -> dict[str, Option]:
    return {
        name.removeprefix(OPTION_PREFIX).lower(): _typed(value)
        for name, value in environment.items()
        if name.startswith(OPTION_PREFIX) and name != OPTION_PREFIX
    }


def _policy(environment: Mapping[str, str], meant: Mapping[str, str]) -> dict[str, str]:
    fields = policy.from_environment(environment)
    known = _OURS | {policy.ENVIRONMENT_PREFIX + name.upper() for name in policy.FIELDS}
    for name in environment:
        if name.startswith(policy.ENVIRONMENT_PREFIX) and name not in known and not name.startswith(OPTION_PREFIX):
            listed = ", ".join(sorted((*known, OPTION_PREFIX + "…")))
            raise InvalidInput(f"there is no setting {name[:80]!r} of a model", remedy=f"known are: {listed}")
    slots = meant.get("slots", "")
    if slots.isascii() and slots.isdigit() and len(slots) <= len(str(MOST_SLOTS)) and 1 <= int(slots) <= MOST_SLOTS:
        fields.setdefault("slots", slots)
    return fields


def _typed(text: str) -> Option:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
