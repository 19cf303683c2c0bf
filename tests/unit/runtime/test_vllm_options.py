"""vLLM's options: an allow-list, and the arguments and environment that they become."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from standby.domain.errors import ConfigurationError, InvalidInput
from standby.domain.model import EngineKind, Manifest, ModelFacts, ModelFormat, ObjectRef
from standby.domain.node import DeviceKind
from standby.runtime.engines.base import EngineSpec
from standby.runtime.engines.vllm import Vllm
from standby.runtime.engines.vllm_arguments import ModelConfig, arguments, environment, threads
from standby.runtime.engines.vllm_options import VllmOptions
from standby.runtime.process_ledger import ProcessLedger
from support.vllm import stand_in_program

SMOL = {
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "hidden_size": 576,
    "max_position_embeddings": 8192,
}
SMOL_TOKEN_BYTES = 2 * 30 * 3 * 64 * 2
MIB = 2**20


@pytest.fixture
def cpu(ledger: ProcessLedger) -> Vllm:
    return Vllm(ledger, stand_in_program(DeviceKind.CPU))


@pytest.fixture
def gpu(ledger: ProcessLedger) -> Vllm:
    return Vllm(ledger, stand_in_program(DeviceKind.GPU))


def spec(folder: Path, config: dict[str, Any] | None = None, slots: int = 4, **more: Any) -> EngineSpec:
    (folder / "config.json").write_text(json.dumps(SMOL if config is None else config))
    return EngineSpec(
        instance="i",
        epoch=1,
        kind=EngineKind.VLLM,
        model_dir=folder,
        model_files=("config.json",),
        served_name="org/smol",
        slots=slots,
        run_dir=folder,
        **more,
    )


def made(folder: Path, *, on_gpu: bool = False, **options: Any) -> list[str]:
    return arguments(spec(folder, options=options), folder / "engine.sock", on_gpu=on_gpu)


def value(found: list[str], flag: str) -> str:
    return found[found.index(flag) + 1]


def test_an_unknown_option_is_named_and_the_allowed_ones_are_listed(cpu: Vllm) -> None:
    with pytest.raises(InvalidInput, match="tensor_paralel='2': no such option") as caught:
        cpu.check({"tensor_paralel": 2})
    assert all(name in caught.value.remedy for name in VllmOptions.model_fields)


@pytest.mark.parametrize(
    "name", ["trust_remote_code", "tokenizer", "hf_overrides", "download_dir", "lora_modules", "chat_template"]
)
def test_no_option_names_a_path_or_lets_a_model_bring_code(cpu: Vllm, name: str) -> None:
    with pytest.raises(InvalidInput, match=f"{name}=.*no such option"):
        cpu.check({name: "true"})


@pytest.mark.parametrize(
    "options",
    [
        {"context": 1}, {"dtype": "int3"}, {"capture_sizes": "1,,2"}, {"capture_sizes": "4,2"}, {"capture_sizes": "0"},
        {"load_strategy": "fast"}, {"speculative": "/tmp/draft"}, {"max_lora_rank": 17}, {"quantization": "best"}, {"seed": -1},
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_refused_with_its_name(cpu: Vllm, options: dict[str, str | int]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(options))):
        cpu.check(options)


def test_an_option_whose_package_is_missing_says_how_to_get_it(ledger: ProcessLedger) -> None:
    options: dict[str, str | int] = {"load_format": "runai_streamer", "speculative": "suffix"}
    with pytest.raises(InvalidInput, match="need runai-model-streamer, arctic-inference") as caught:
        Vllm(ledger, stand_in_program(DeviceKind.GPU)).check(options)
    assert caught.value.remedy.endswith("-m pip install runai-model-streamer arctic-inference")
    packages = frozenset({"runai-model-streamer", "arctic-inference"})
    Vllm(ledger, stand_in_program(DeviceKind.GPU, packages=packages)).check(options)


def test_a_processor_has_no_second_device(cpu: Vllm, gpu: Vllm) -> None:
    gpu.check({"devices": 2})
    with pytest.raises(InvalidInput, match="devices=2"):
        cpu.check({"devices": 2})


def test_a_start_on_a_processor_is_eager_in_two_processes_with_explicit_cache(run_dir: Path) -> None:
    found = made(run_dir)
    assert value(found, "--uds") == str(run_dir / "engine.sock")
    assert value(found, "--served-model-name") == "org/smol"
    assert value(found, "--max-num-seqs") == "4"
    assert value(found, "--max-model-len") == "2048"
    assert value(found, "--distributed-executor-backend") == "uni"
    assert "--enforce-eager" in found
    assert "--enable-sleep-mode" not in found
    assert not any("trust" in one for one in found)


def test_the_cache_has_room_for_every_slot_at_full_context(run_dir: Path) -> None:
    bytes_given = int(value(made(run_dir), "--kv-cache-memory-bytes"))
    needed = 4 * 2048 * SMOL_TOKEN_BYTES
    assert needed < bytes_given < needed * 1.05
    assert value(made(run_dir, kv_cache_mib=512), "--kv-cache-memory-bytes") == str(512 * MIB)
    assert int(value(made(run_dir, kv_type="fp8"), "--kv-cache-memory-bytes")) < needed * 0.55


def test_the_context_is_capped_by_what_the_model_was_made_for(run_dir: Path) -> None:
    assert value(made(run_dir, context=100_000), "--max-model-len") == "8192"


def test_a_text_model_within_a_larger_one_is_looked_into(run_dir: Path) -> None:
    config = ModelConfig({"model_type": "gemma3", "text_config": SMOL})
    assert (config.longest, config.kv_bytes_per_token) == (8192, SMOL_TOKEN_BYTES)


def test_a_configuration_that_says_nothing_gets_a_guess_and_one_that_is_missing_an_error(run_dir: Path) -> None:
    assert ModelConfig({}).kv_bytes_per_token > 0
    (run_dir / "config.json").write_text("this is no model")
    assert ModelConfig.read(run_dir).longest is None
    (run_dir / "config.json").unlink()
    with pytest.raises(ConfigurationError, match=r"has no config\.json"):
        ModelConfig.read(run_dir)


def test_a_start_on_a_gpu_captures_few_graphs_and_can_sleep(run_dir: Path) -> None:
    found = made(run_dir, on_gpu=True, capture_sizes="1,2,16", devices=2)
    start = found.index("--cudagraph-capture-sizes")
    assert found[start + 1 : start + 4] == ["1", "2", "16"]
    assert "--enforce-eager" not in found
    assert "--enable-sleep-mode" in found
    assert value(found, "--tensor-parallel-size") == "2"
    assert "--enforce-eager" in made(run_dir, on_gpu=True, enforce_eager=True)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"dtype": "float32"}, ["--dtype", "float32"]),
        ({"load_strategy": "prefetch"}, ["--safetensors-load-strategy", "prefetch"]),
        ({"load_format": "fastsafetensors"}, ["--load-format", "fastsafetensors"]),
        ({"prefix_caching": False}, ["--no-enable-prefix-caching"]),
        ({"priority": True}, ["--scheduling-policy", "priority"]),
        ({"max_batched_tokens": 4096}, ["--max-num-batched-tokens", "4096"]),
        ({"quantization": "awq"}, ["--quantization", "awq"]),
        ({"seed": 7}, ["--seed", "7"]),
        (
            {"enable_lora": True, "max_loras": 2, "max_lora_rank": 32},
            ["--enable-lora", "--max-loras", "2", "--max-lora-rank", "32"],
        ),
        (
            {"speculative": "ngram", "speculative_tokens": 3, "ngram_max": 5},
            ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 5}'],
        ),
        ({"speculative": "suffix"}, ["--speculative-config", '{"method": "suffix", "num_speculative_tokens": 4}']),
    ],
)
def test_an_option_becomes_arguments_each_of_its_own(run_dir: Path, options: dict[str, Any], expected: list[str]) -> None:
    found = made(run_dir, **options)
    start = found.index(expected[0])
    assert found[start : start + len(expected)] == expected


def test_only_an_engine_that_is_to_be_traced_has_a_profiler(run_dir: Path) -> None:
    """Its traces lie in the folder of its own run; Python's stacks are not in them, since their table takes minutes."""
    found = made(run_dir, profile=True)
    told = json.loads(found[found.index("--profiler-config") + 1])
    assert Path(told["torch_profiler_dir"]).parent == Path(found[found.index("--uds") + 1]).parent
    assert (told["profiler"], told["torch_profiler_with_stack"]) == ("torch", False)
    assert "--profiler-config" not in made(run_dir)


def test_compiled_kernels_go_to_the_cache_of_their_fingerprint(run_dir: Path) -> None:
    found = environment(spec(run_dir, cache_dir=run_dir / "cache"), on_gpu=True)
    paths = {Path(found[name]) for name in ("VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")}
    assert len(paths) == 3
    assert all(path.is_relative_to(run_dir / "cache") for path in paths)
    assert "VLLM_CACHE_ROOT" not in environment(spec(run_dir), on_gpu=True)


def test_only_an_engine_that_compiles_uses_the_compile_cache(cpu: Vllm, gpu: Vllm) -> None:
    assert not cpu.uses_compile_cache({})
    assert cpu.uses_compile_cache({"enforce_eager": False})
    assert gpu.uses_compile_cache({})
    assert not gpu.uses_compile_cache({"enforce_eager": True})


def test_an_engine_on_a_gpu_sees_its_devices_and_has_routes_to_sleep(run_dir: Path) -> None:
    found = environment(spec(run_dir, devices=("GPU-1", "MIG-2")), on_gpu=True)
    assert found["CUDA_VISIBLE_DEVICES"] == "GPU-1,MIG-2"
    assert found["VLLM_SERVER_DEV_MODE"] == "1"
    assert "VLLM_SERVER_DEV_MODE" not in environment(spec(run_dir), on_gpu=False)


def test_one_processor_is_left_to_the_api_process() -> None:
    assert threads(VllmOptions(), (0, 1, 2, 3)) == 3
    assert threads(VllmOptions(), (5,)) == 1
    assert threads(VllmOptions(threads=4), (0, 1)) == 4


def test_the_estimate_covers_what_was_measured_and_is_not_wild(cpu: Vllm, gpu: Vllm) -> None:
    """Measured on SmolLM2-135M with 4 slots of 2048 tokens: both processes hold 860 MB that they share with nobody."""
    manifest = Manifest(
        source_uri="s3://b/m/",
        format=ModelFormat.SAFETENSORS,
        objects=(ObjectRef(key="m/model.safetensors", path="model.safetensors", size=269_060_552),),
        facts=ModelFacts(parameter_count=134_515_008, context_length=8192, kv_bytes_per_token=SMOL_TOKEN_BYTES),
    )
    assert 860_000_000 < cpu.estimate_bytes(manifest, {}, 4) < 1_300_000_000
    assert gpu.estimate_bytes(manifest, {"devices": 2}, 4) > gpu.estimate_bytes(manifest, {}, 4) > manifest.unpacked_bytes
