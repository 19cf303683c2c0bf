"""llama.cpp's options: an allow-list that names what is wrong."""

from __future__ import annotations

import pytest

from standby.domain.errors import InvalidInput
from standby.domain.model import Manifest, ModelFacts, ModelFormat, ObjectRef
from standby.runtime.engines.llama_cpp import LlamaCpp
from standby.runtime.engines.llama_cpp_options import LlamaCppOptions
from standby.runtime.process_ledger import ProcessLedger

GIB = 2**30


@pytest.fixture
def adapter(ledger: ProcessLedger) -> LlamaCpp:
    return LlamaCpp(ledger)


def manifest(size: int, parameters: int | None, context: int | None = None) -> Manifest:
    return Manifest(
        source_uri="s3://b/m.gguf",
        format=ModelFormat.GGUF,
        objects=(ObjectRef(key="m.gguf", path="m.gguf", size=size),),
        facts=ModelFacts(parameter_count=parameters, context_length=context),
    )


def test_an_unknown_option_is_named_and_the_allowed_ones_are_listed(adapter: LlamaCpp) -> None:
    with pytest.raises(InvalidInput, match=r"n_gpu_layerz='9': no such option") as caught:
        adapter.check({"n_gpu_layerz": 9})
    assert all(name in caught.value.remedy for name in LlamaCppOptions.model_fields)


@pytest.mark.parametrize("options", [{"context": 1}, {"kv_type": "q2"}, {"threads": -1}, {"flash_attention": "maybe"}])
def test_a_value_out_of_range_is_refused_with_its_name(adapter: LlamaCpp, options: dict[str, str | int]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(options))):
        adapter.check(options)


def test_good_options_pass(adapter: LlamaCpp) -> None:
    adapter.check({"context": 4096, "kv_type": "q8_0", "threads": 2, "repack": True, "flash_attention": "on"})


def test_the_estimate_covers_the_real_model_and_is_not_wild(adapter: LlamaCpp) -> None:
    """Measured for SmolLM2-135M with 4 slots of 2048 tokens: 330 MiB resident after the start."""
    estimate = adapter.estimate_bytes(manifest(98_362_432, 134_515_008, 8192), {}, 4)
    assert 346_000_000 < estimate < 600_000_000


def test_the_estimate_grows_with_slots_and_context_and_shrinks_with_a_smaller_cache_type(adapter: LlamaCpp) -> None:
    model = manifest(5 * GIB, 8_000_000_000, 131_072)
    base = adapter.estimate_bytes(model, {"context": 4096}, 2)
    assert base > 5 * GIB
    assert adapter.estimate_bytes(model, {"context": 4096}, 4) > base
    assert adapter.estimate_bytes(model, {"context": 8192}, 2) > base
    assert adapter.estimate_bytes(model, {"context": 4096, "kv_type": "q8_0"}, 2) < base
    assert adapter.estimate_bytes(manifest(5 * GIB, None), {"context": 4096}, 2) == pytest.approx(base, rel=0.1)


def test_a_context_beyond_the_models_own_reserves_nothing_more(adapter: LlamaCpp) -> None:
    model = manifest(GIB, 1_000_000_000, 2048)
    assert adapter.estimate_bytes(model, {"context": 65_536}, 1) == adapter.estimate_bytes(model, {"context": 2048}, 1)
