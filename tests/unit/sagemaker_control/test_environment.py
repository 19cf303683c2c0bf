"""What containers' environments mean for our engines: an allow-list, and no code that a model brings."""

from __future__ import annotations

import pytest

from standby.domain.errors import InvalidInput
from standby.domain.model import EngineKind
from standby.runtime.engines.llama_cpp_options import LlamaCppOptions
from standby.runtime.engines.tensorrt_llm_options import TensorRtLlmOptions
from standby.runtime.engines.vllm_options import VllmOptions
from standby.sagemaker.control.environment import engine_options, read_environment, with_properties
from standby.sagemaker.control.images import engine_of

LMI = {
    "OPTION_MAX_MODEL_LEN": "4096",
    "OPTION_DTYPE": "fp16",
    "TENSOR_PARALLEL_DEGREE": "2",
    "OPTION_ROLLING_BATCH": "vllm",
    "OPTION_MAX_ROLLING_BATCH_SIZE": "16",
    "OPTION_ENABLE_PREFIX_CACHING": "true",
    "OPTION_QUANTIZE": "awq",
    "OPTION_SPECULATIVE_DRAFT_MODEL": "x",
    "SERVING_LOAD_MODELS": "a",
}


@pytest.mark.decision
def test_options_of_lmi_become_options_that_the_engine_accepts() -> None:
    wanted = read_environment(LMI)
    options, notes = engine_options(wanted, EngineKind.VLLM)
    assert options == {"context": 4096, "dtype": "float16", "devices": 2, "prefix_caching": True, "quantization": "awq"}
    VllmOptions.parse(options)
    assert wanted.hint is EngineKind.VLLM
    assert wanted.policy == {"slots": "16"}
    assert "OPTION_SPECULATIVE_DRAFT_MODEL is not used here" in wanted.notes
    assert notes == ()


@pytest.mark.decision
def test_each_engine_takes_what_it_has_an_option_for() -> None:
    wanted = read_environment({"SM_VLLM_MAX_MODEL_LEN": "512", "SM_VLLM_TENSOR_PARALLEL_SIZE": "4", "OPTION_SEED": "7"})
    options, notes = engine_options(wanted, EngineKind.TENSORRT_LLM)
    assert options == {"context": 512, "tensor_parallel": 4}
    TensorRtLlmOptions.parse(options)
    assert notes == ("tensorrt_llm has nothing for seed=7",)
    options, _ = engine_options(wanted, EngineKind.LLAMA_CPP)
    assert options == {"context": 512}
    LlamaCppOptions.parse(options)


@pytest.mark.decision
def test_a_value_that_an_engine_does_not_take_is_a_note() -> None:
    options, notes = engine_options(read_environment({"OPTION_DTYPE": "int3", "OPTION_MAX_MODEL_LEN": "all"}), EngineKind.VLLM)
    assert options == {}
    assert len(notes) == 2
    assert "one of auto, bf16" in "".join(notes)


@pytest.mark.decision
@pytest.mark.parametrize("name", ["OPTION_TRUST_REMOTE_CODE", "SM_VLLM_TRUST_REMOTE_CODE", "HF_TRUST_REMOTE_CODE"])
@pytest.mark.parametrize("value", ["true", "True", "1", "yes "])
def test_remote_code_is_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidInput, match=name):
        read_environment({name: value})
    assert read_environment({name: "false"}).options == {}


@pytest.mark.decision
def test_our_own_settings() -> None:
    wanted = read_environment(
        {
            "STANDBY_ENGINE": "llama_cpp",
            "STANDBY_OPTION_CONTEXT": "1024",
            "STANDBY_KEEP_READY": "5m",
            "STANDBY_CREDENTIALS": "k",
        }
    )
    assert (wanted.engine, wanted.options, wanted.policy) == (EngineKind.LLAMA_CPP, {"context": 1024}, {"keep_ready": "5m"})
    assert wanted.credentials == "k"
    for wrong in ({"STANDBY_ENGINE": "onnx"}, {"STANDBY_KEEP_REDY": "5m"}, {"STANDBY_KEEP_READY": "soon"}):
        with pytest.raises(InvalidInput):
            read_environment(wrong)


@pytest.mark.decision
@pytest.mark.parametrize(
    ("value", "uri"),
    [
        ("s3://b/llama/", "s3://b/llama/"),
        ("s3://b/llama", "s3://b/llama/"),
        ("s3://b/llama.gguf", "s3://b/llama.gguf"),
        ("/opt/ml/model", None),
        ("org/llama", None),
    ],
)
def test_where_the_model_lies(value: str, uri: str | None) -> None:
    wanted = read_environment({"HF_MODEL_ID": value})
    assert wanted.source_uri == uri
    assert any("hub" in note for note in wanted.notes) == (value == "org/llama")


@pytest.mark.decision
def test_properties_beside_the_model_win_over_the_environment() -> None:
    text = "# settings\nengine=Python\noption.max_model_len = 99\noption.model_id=s3://b/m/\n"
    wanted = read_environment(with_properties({"OPTION_MAX_MODEL_LEN": "1"}, text))
    assert wanted.meant == {"context": "99"}
    assert wanted.source_uri == "s3://b/m/"
    with pytest.raises(InvalidInput):
        read_environment(with_properties({}, "option.trust_remote_code=true"))


@pytest.mark.decision
@pytest.mark.parametrize(
    ("image", "engine"),
    [
        ("763104351884.dkr.ecr.us-east-1.amazonaws.com/djl-inference:0.30.0-tensorrtllm0.12.0-cu125", EngineKind.TENSORRT_LLM),
        ("763104351884.dkr.ecr.us-east-1.amazonaws.com/vllm:0.11-gpu", EngineKind.VLLM),
        ("ghcr.io/ggml-org/llama.cpp:server", EngineKind.LLAMA_CPP),
        ("763104351884.dkr.ecr.us-east-1.amazonaws.com/djl-inference:0.30.0-lmi12.0.0-cu124", None),
        ("vllm.example.com/other:1", None),
    ],
)
def test_what_an_images_name_says(image: str, engine: EngineKind | None) -> None:
    assert engine_of(image) is engine


def test_a_batch_size_beyond_any_use_is_left_out() -> None:
    """A model's own serving.properties may hold anything; Python refuses to read numbers of so many digits."""
    properties = with_properties({}, "option.max_rolling_batch_size=" + "9" * 5000)
    assert "slots" not in read_environment(properties).policy
