"""TensorRT-LLM's options, the configuration file that they make, and the priorities of every engine."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from standby.domain.errors import InvalidInput
from standby.domain.model import EngineKind, Manifest, ModelFormat, ObjectRef
from standby.domain.priority import Priority, engine_priority
from standby.runtime.engines.tensorrt_llm_config import KvCacheConfig, TrtLlmConfig
from standby.runtime.engines.tensorrt_llm_options import TensorRtLlmOptions
from standby.runtime.process_ledger import ProcessLedger
from support.trtllm import SLEEPING, trtllm_adapter

pytestmark = pytest.mark.decision
URGENCY = (Priority.URGENT, Priority.HIGH, Priority.NORMAL, Priority.BATCH)


def written(slots: int = 4, **options: str | int | float | bool) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(TensorRtLlmOptions.parse(options).config(slots).as_yaml())
    return content


def test_an_unknown_option_is_named_and_the_allowed_ones_are_listed() -> None:
    with pytest.raises(InvalidInput, match=r"trust_remote_code='True': no such option") as caught:
        TensorRtLlmOptions.parse({"trust_remote_code": True})
    assert all(name in caught.value.remedy for name in TensorRtLlmOptions.model_fields)


@pytest.mark.parametrize(
    "options",
    [
        {"context": 1},
        {"kv_type": "int3"},
        {"kv_fraction": 1.0},
        {"cuda_graphs": "1,x"},
        {"cuda_graphs": "0"},
        {"speculation": "eagle"},
    ],
)
def test_a_value_out_of_range_is_refused_with_its_name(options: dict[str, str | int]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(options))):
        TensorRtLlmOptions.parse(options)


def test_the_mirror_is_as_strict_as_the_engine() -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        TrtLlmConfig.model_validate({"max_batch": 4})
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        KvCacheConfig.model_validate({"max_tokenz": 4})


def test_only_what_was_set_is_written() -> None:
    content = written()
    assert content["max_batch_size"] == 4
    assert content["kv_cache_config"] == {"enable_block_reuse": True, "free_gpu_memory_fraction": 0.8, "dtype": "auto"}
    assert content["enable_iter_perf_stats"] is True
    for absent in ("max_seq_len", "cuda_graph_config", "lora_config", "speculative_config", "torch_compile_config"):
        assert absent not in content


def test_explicit_cache_sizes_replace_the_fraction_of_what_is_free() -> None:
    """What is free depends on the neighbours; bytes do not."""
    assert written(kv_mib=1024)["kv_cache_config"]["max_gpu_total_bytes"] == 2**30
    assert "free_gpu_memory_fraction" not in written(kv_mib=1024)["kv_cache_config"]
    assert written(kv_tokens=100)["kv_cache_config"]["max_tokens"] == 100


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [("off", None), ("4,1,2", {"batch_sizes": [1, 2, 4], "enable_padding": True})],
)
def test_graphs_are_off_by_null_and_few_by_their_sizes(chosen: str, expected: object) -> None:
    content = written(cuda_graphs=chosen)
    assert "cuda_graph_config" in content
    assert content["cuda_graph_config"] == expected


def test_speculation_names_its_type_although_it_is_the_default() -> None:
    assert written(speculation="ngram")["speculative_config"] == {"decoding_type": "NGram", "max_draft_len": 4}
    assert written(speculation="mtp", speculation_tokens=1)["speculative_config"] == {
        "decoding_type": "MTP",
        "num_nextn_predict_layers": 1,
    }


def test_every_option_is_written_as_keys_that_the_stand_in_knows_too() -> None:
    """The stand-in's list of keys was written apart from the mirror: a typing error in one is seen in the other."""
    from support.trtllm_stand_in import strict_config

    options = TensorRtLlmOptions(
        context=4096, expert_parallel=2, kv_tokens=1, kv_mib=1, kv_host_mib=1, kv_block_tokens=32, cuda_graphs="1",
        compile=True, chunked_prefill=True, scheduler="full", priority=True, batch_wait_ms=5, speculation="ngram",
        lora_rank=8, request_metrics=True,
    )  # fmt: skip
    text = options.config(2).as_yaml()
    assert strict_config(text, newer=True) == json.loads(text)
    with pytest.raises(ValueError, match="waiting_queue_policy"):
        strict_config(text, newer=False)


def test_no_number_is_written_that_yaml_reads_as_text() -> None:
    """YAML 1.1 takes 1e-05 for a string; JSON writes it so."""
    assert "e-" not in TensorRtLlmOptions(kv_fraction=0.01).config(1).as_yaml()


def test_the_estimate_grows_with_ranks_and_blocks_on_the_host(ledger: ProcessLedger) -> None:
    model = Manifest(
        source_uri="s3://b/m/", format=ModelFormat.SAFETENSORS, objects=(ObjectRef(key="m", path="m.safetensors", size=10**9),)
    )
    adapter = trtllm_adapter(ledger, SLEEPING)
    base = adapter.estimate_bytes(model, {}, 1)
    assert base > 10**9
    assert adapter.estimate_bytes(model, {"tensor_parallel": 2}, 1) > base
    assert adapter.estimate_bytes(model, {"kv_host_mib": 1024}, 1) == base + 2**30


def test_more_urgent_is_lower_for_vllm_and_higher_for_tensorrt_llm() -> None:
    vllm = [engine_priority(EngineKind.VLLM, level) for level in URGENCY]
    trtllm = [engine_priority(EngineKind.TENSORRT_LLM, level) for level in URGENCY]
    assert vllm == sorted(vllm, key=lambda value: value or 0)
    assert all(isinstance(value, int) for value in vllm)
    assert engine_priority(EngineKind.VLLM, Priority.NORMAL) == 0  # what an engine without priorities accepts
    assert trtllm == sorted(trtllm, key=lambda value: -(value or 0))
    assert all(value is not None and 0 <= value <= 1 for value in trtllm)
    assert {engine_priority(EngineKind.LLAMA_CPP, level) for level in URGENCY} == {None}
