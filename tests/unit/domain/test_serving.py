"""Which engine serves which weights."""

from __future__ import annotations

import pytest

from standby.domain.model import EngineKind, Model, ModelFormat
from standby.domain.serving import PREFERENCE, default_engine, with_weights
from support.builders import a_manifest, a_model

pytestmark = pytest.mark.decision

NO_GGUF = {EngineKind.VLLM: "gguf", EngineKind.TENSORRT_LLM: "gguf"}
NO_SAFETENSORS = {EngineKind.LLAMA_CPP: "safetensors"}
BASE = a_manifest(source_uri="s3://models/base/", format=ModelFormat.SAFETENSORS, refusals=NO_SAFETENSORS)
FP8 = a_manifest(source_uri="s3://models/fp8/", format=ModelFormat.SAFETENSORS, refusals=NO_SAFETENSORS)
Q4 = a_manifest(source_uri="s3://models/q4.gguf", refusals=NO_GGUF)


def a_model_with_weights(engine: EngineKind = EngineKind.VLLM) -> Model:
    return a_model(manifest=BASE, engine=engine, engine_options={"threads": 2}, weights={"fp8": FP8, "q4": Q4})


def test_the_registered_weights_without_the_others() -> None:
    served = with_weights(a_model_with_weights(), None)

    assert served is not None
    assert (served.manifest, served.engine, served.weights) == (BASE, EngineKind.VLLM, {})
    assert served.engine_options == {"threads": 2}


def test_chosen_weights_keep_the_engine_that_can_serve_them() -> None:
    served = with_weights(a_model_with_weights(EngineKind.TENSORRT_LLM), "fp8")

    assert served is not None
    assert (served.manifest, served.engine, served.weights) == (FP8, EngineKind.TENSORRT_LLM, {})
    assert served.engine_options == {"threads": 2}


def test_weights_of_another_format_get_their_engine_without_the_others_options() -> None:
    served = with_weights(a_model_with_weights(), "q4")

    assert served is not None
    assert (served.manifest, served.engine, served.engine_options) == (Q4, EngineKind.LLAMA_CPP, {})


def test_the_fake_engine_serves_everything_where_it_was_asked_for() -> None:
    served = with_weights(a_model_with_weights(EngineKind.FAKE), "q4")

    assert served is not None
    assert served.engine is EngineKind.FAKE


def test_unknown_weights_are_none() -> None:
    assert with_weights(a_model_with_weights(), "q8") is None


@pytest.mark.parametrize("form", list(ModelFormat))
def test_every_format_has_a_usual_engine(form: ModelFormat) -> None:
    nobody = a_manifest(format=form, refusals=dict.fromkeys(PREFERENCE, "no"))
    assert default_engine(nobody) in PREFERENCE
