"""What config files say about a model, which engines can serve it, and which weights are of one model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from standby.artifacts.config_facts import Totals, config_facts, kv_bytes_per_token, refuse_remote_code
from standby.artifacts.data_source import SourceHint, from_s3_data_source
from standby.artifacts.safetensors import SafetensorsHeader
from standby.artifacts.variants import same_model
from standby.artifacts.verdicts import refusals
from standby.domain.errors import InvalidInput, UnsupportedArtifact
from standby.domain.model import EngineKind, Manifest, ModelFacts, ModelFormat, ObjectRef
from support.safetensors_builder import CONFIG

pytestmark = pytest.mark.decision

FILES = frozenset({"config.json", "tokenizer.json", "model.safetensors"})


def test_facts_of_a_config() -> None:
    totals = Totals()
    totals.add(SafetensorsHeader(frozenset({"a", "b"}), 100, {"F32": 40, "BF16": 180}, 8))
    totals.add(SafetensorsHeader(frozenset({"c"}), 10, {"BF16": 20}, 8))
    assert config_facts(CONFIG, {"chat_template": "x"}, FILES, totals) == ModelFacts(
        architecture="LlamaForCausalLM",
        parameter_count=110,
        context_length=4096,
        quantisation="bfloat16",
        has_chat_template=True,
        has_tokenizer=True,
        tensor_count=3,
        dtypes=("BF16", "F32"),
        kv_bytes_per_token=2 * 2 * 2 * 8 * 2,
    )


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"quantization_config": {"quant_method": "awq"}, "dtype": "float16"}, "awq"),
        ({"quantization_config": {"bits": 4}, "torch_dtype": "float16"}, "float16"),
        ({"quantization_config": "x"}, ""),
        ({"dtype": 16}, ""),
        ({"text_config": {"dtype": "bfloat16"}}, "bfloat16"),
    ],
)
def test_quantisation(config: Mapping[str, Any], expected: str) -> None:
    assert config_facts(config, {}, FILES, None).quantisation == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (CONFIG, 2 * 2 * 2 * 8 * 2),
        ({**CONFIG, "head_dim": 32}, 2 * 2 * 2 * 32 * 2),
        ({**CONFIG, "num_key_value_heads": None}, 2 * 2 * 8 * 8 * 2),
        ({**CONFIG, "multi_query": True}, 2 * 2 * 1 * 8 * 2),
        ({"n_layer": 2, "n_head": 8, "n_embd": 64}, 2 * 2 * 8 * 8 * 2),
        ({**CONFIG, "kv_lora_rank": 512, "qk_rope_head_dim": 64}, 2 * (512 + 64) * 2),
        ({**CONFIG, "layer_types": ["linear_attention", "full_attention"]}, 2 * 1 * 2 * 8 * 2),
        ({}, None),
        ({**CONFIG, "num_hidden_layers": "two"}, None),
        ({**CONFIG, "num_hidden_layers": -2}, None),
        ({**CONFIG, "num_hidden_layers": True}, None),
        ({**CONFIG, "num_hidden_layers": 1 << 60}, None),
        ({**CONFIG, "hidden_size": 0}, None),
        ({**CONFIG, "num_attention_heads": 0}, None),
    ],
)
def test_key_value_cache(config: Mapping[str, Any], expected: int | None) -> None:
    """Keys and values, for each layer and each key-value head, at two bytes; and nothing rather than a guess."""
    assert kv_bytes_per_token(config) == expected


@pytest.mark.parametrize(
    "config", [{"architectures": 1}, {"architectures": [1]}, {"architectures": []}, {"model_type": None}, {"text_config": []}]
)
def test_nonsense_counts_as_not_said(config: Mapping[str, Any]) -> None:
    assert config_facts(config, {}, frozenset(), None) == ModelFacts()


def test_remote_code_is_refused() -> None:
    """Field case B06."""
    with pytest.raises(UnsupportedArtifact, match=r"here: config\.json asks for the model's own Python code"):
        refuse_remote_code("config.json", {"auto_map": {"AutoModel": "modeling_x.X"}}, "here")
    refuse_remote_code("config.json", {"auto_map": {}}, "here")


LLAMA = ModelFacts(architecture="llama", has_tokenizer=True)


@pytest.mark.parametrize(
    ("form", "facts", "refused"),
    [
        (ModelFormat.GGUF, LLAMA, {EngineKind.VLLM: "weights are gguf", EngineKind.TENSORRT_LLM: "weights are gguf"}),
        (ModelFormat.SAFETENSORS, LLAMA, {EngineKind.LLAMA_CPP: "llama.cpp reads GGUF only"}),
        (
            ModelFormat.PICKLE,
            LLAMA,
            {EngineKind.LLAMA_CPP: "weights are pickle", EngineKind.TENSORRT_LLM: "weights are pickle"},
        ),
        (
            ModelFormat.SAFETENSORS,
            ModelFacts(has_tokenizer=True),
            {
                EngineKind.LLAMA_CPP: "GGUF only",
                EngineKind.VLLM: "config.json names no architecture",
                EngineKind.TENSORRT_LLM: "config.json names no architecture",
            },
        ),
        (
            ModelFormat.SAFETENSORS,
            ModelFacts(architecture="x"),
            {
                EngineKind.LLAMA_CPP: "GGUF only",
                EngineKind.VLLM: "no tokenizer: upload tokenizer.json",
                EngineKind.TENSORRT_LLM: "no tokenizer",
            },
        ),
        (
            ModelFormat.GGUF,
            ModelFacts(architecture="llama"),
            {EngineKind.LLAMA_CPP: "no tokenizer in the GGUF", EngineKind.VLLM: "", EngineKind.TENSORRT_LLM: ""},
        ),
    ],
)
def test_verdicts(form: ModelFormat, facts: ModelFacts, refused: Mapping[EngineKind, str]) -> None:
    found = refusals(form, facts)
    assert found.keys() == refused.keys()
    for kind, says in refused.items():
        assert says in found[kind]


def manifest(form: ModelFormat = ModelFormat.SAFETENSORS, **facts: Any) -> Manifest:
    known = {"architecture": "LlamaForCausalLM", "context_length": 4096, "has_tokenizer": True, **facts}
    ref = ObjectRef(key="m", path="m", size=1)
    return Manifest(source_uri="s3://bkt/m", format=form, objects=(ref,), facts=ModelFacts.model_validate(known))


@pytest.mark.parametrize(
    "other",
    [
        manifest(quantisation="fp8"),
        manifest(ModelFormat.GGUF, architecture="llama"),
        manifest(context_length=None),
        manifest(architecture=""),
    ],
)
def test_other_weights_of_the_same_model(other: Manifest) -> None:
    assert same_model(manifest(), other) is None


@pytest.mark.parametrize(
    ("mine", "its"),
    [
        ("MistralForCausalLM", "llama"),
        ("DeepseekV3ForCausalLM", "deepseek2"),
        ("GPT2LMHeadModel", "gpt2"),
        ("Qwen3MoeForCausalLM", "qwen3moe"),
    ],
)
def test_architectures_that_formats_call_differently(mine: str, its: str) -> None:
    assert same_model(manifest(architecture=mine), manifest(ModelFormat.GGUF, architecture=its)) is None


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (manifest(architecture="Qwen2ForCausalLM"), "the architecture is 'Qwen2ForCausalLM' instead of 'LlamaForCausalLM'"),
        (manifest(ModelFormat.GGUF, architecture="qwen2"), "the architecture is 'qwen2'"),
        (manifest(context_length=2048), "the context length is 2048 instead of 4096 tokens"),
        (manifest(has_tokenizer=False), "it has no tokenizer, the registered model has a tokenizer"),
        (manifest(has_chat_template=True), "it has a chat template, the registered model has no chat template"),
    ],
)
def test_weights_of_another_model(other: Manifest, says: str) -> None:
    found = same_model(manifest(), other)
    assert found is not None
    assert says in found


def s3(uri: str, kind: str, compression: str, **more: Any) -> dict[str, Any]:
    return {"S3Uri": uri, "S3DataType": kind, "CompressionType": compression, **more}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (s3("s3://bkt/m/", "S3Prefix", "None"), ("s3://bkt/m/", SourceHint.FOLDER)),
        (s3("s3://bkt/m.gguf", "S3Object", "None"), ("s3://bkt/m.gguf", SourceHint.OBJECT)),
        (s3("s3://bkt/m.tar.gz", "S3Object", "Gzip"), ("s3://bkt/m.tar.gz", SourceHint.ARCHIVE)),
        (s3("s3://bkt/any", "S3Object", "Gzip", ETag=None), ("s3://bkt/any", SourceHint.ARCHIVE)),
        ({"S3DataSource": s3("s3://bkt/m/", "S3Prefix", "None")}, ("s3://bkt/m/", SourceHint.FOLDER)),
        (
            {
                "ModelDataSource": {
                    "S3DataSource": s3("s3://bkt/m/", "S3Prefix", "None", ModelAccessConfig={"AcceptEula": True})
                }
            },
            ("s3://bkt/m/", SourceHint.FOLDER),
        ),
        ({"ModelDataUrl": "s3://bkt/m.tar.gz"}, ("s3://bkt/m.tar.gz", SourceHint.ARCHIVE)),
    ],
)
def test_sagemaker_source(data: Mapping[str, Any], expected: tuple[str, SourceHint]) -> None:
    assert from_s3_data_source(data) == expected


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({}, "neither ModelDataUrl nor ModelDataSource"),
        ({"ModelDataUrl": "s3://bkt/m", "ModelDataSource": {}}, "are both there"),
        ({"ModelDataUrl": "s3://bkt/m/"}, "ends in '/', and names a gzip archive"),
        ({"ModelDataUrl": "https://bkt.s3.amazonaws.com/m"}, "is no s3:// URI"),
        ({"ModelDataUrl": 5}, "is no s3:// URI"),
        ({"ModelDataUrl": "s3://B/m"}, "no legal bucket name"),
        ({"ModelDataSource": []}, "ModelDataSource is no object"),
        (s3("s3://bkt/m", "S3Prefix", "None"), r"does not end in '/'; write s3://bkt/m/"),
        (s3("s3://bkt/m/", "S3Prefix", "Gzip"), "S3DataType 'S3Prefix' with CompressionType 'Gzip' is not possible"),
        (s3("s3://bkt/m/", "S3Object", "None"), "with S3DataType S3Object ends in '/'"),
        (s3("s3://bkt/m/", "S3Object", "Gzip"), "with S3DataType S3Object ends in '/'"),
        (s3("s3://bkt/m.tar.gz", "S3Object", "None"), "names an archive, which CompressionType None leaves packed"),
        (s3("s3://bkt/m", "S3Thing", "None"), "'S3Thing' with CompressionType 'None' is not possible"),
        ({"S3Uri": "s3://bkt/m"}, "has no S3DataType and no CompressionType"),
        (s3("s3://bkt/m/", "S3Prefix", "None", ManifestS3Uri="s3://bkt/x"), "ManifestS3Uri not supported"),
    ],
)
def test_contradictions_of_a_sagemaker_source(data: Mapping[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        from_s3_data_source(data)
