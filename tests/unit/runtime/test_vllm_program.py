"""Where vLLM is, and what is said when it is not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from standby.domain.errors import ConfigurationError
from standby.domain.node import DeviceKind
from standby.runtime.engines.vllm import Vllm
from standby.runtime.engines.vllm_program import VllmProgram, find_program
from standby.runtime.process import engine_environment
from standby.runtime.process_ledger import ProcessLedger
from support.fake_engine_spec import short_dir
from support.other_environment import make_environment
from support.vllm import needs_vllm, stand_in_program, vllm_program, vllm_spec


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"STANDBY_VLLM_PYTHON names .*nowhere, which does not exist") as caught:
        find_program(tmp_path / "nowhere")
    assert "make vllm" in caught.value.remedy


def test_an_interpreter_without_vllm_is_named() -> None:
    with pytest.raises(ConfigurationError, match="has no vLLM"):
        find_program(Path(sys.executable))


def test_an_environment_without_vllm_says_how_to_get_it() -> None:
    with pytest.raises(ConfigurationError, match="vLLM is not installed"):
        find_program(None)


@needs_vllm
@pytest.mark.vllm
def test_the_real_one_tells_its_versions_without_being_imported() -> None:
    found = vllm_program()
    assert found.version.startswith("vllm")
    assert "torch " in found.version
    assert found.device in (DeviceKind.CPU, DeviceKind.GPU)


def test_what_changes_kernels_beside_vllm_is_named_with_it(tmp_path: Path) -> None:
    versions = {"vllm": "0.33.0", "torch": "2.14.0+cu130", "triton": "3.9.0", "flashinfer-python": "0.6.1"}
    found = find_program(make_environment(tmp_path / "gpu", versions))
    assert found.version == "vllm 0.33.0 torch 2.14.0+cu130 triton 3.9.0 flashinfer-python 0.6.1"


def test_our_own_search_path_is_kept_out_of_another_interpreter(ledger: ProcessLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages of ours would win there over its own, of which alone the version was asked."""
    monkeypatch.setenv("PYTHONPATH", "/somewhere/site-packages")
    another = Vllm(ledger, stand_in_program(DeviceKind.GPU)).zygote_plan
    assert engine_environment(another.environment, "0" * 32)["PYTHONPATH"] == ""
    same = Vllm(ledger, VllmProgram(Path(sys.executable), "vllm 0", DeviceKind.CPU)).zygote_plan
    assert engine_environment(same.environment, "0" * 32)["PYTHONPATH"] == "/somewhere/site-packages"


async def test_processors_that_it_may_not_use_are_no_reason_to_lose_an_engine(ledger: ProcessLedger, tmp_path: Path) -> None:
    """Processors were taken away from the node meanwhile: whoever starts the engine must be told of it."""
    (tmp_path / "config.json").write_text("{}")
    with short_dir() as run_dir:
        adapter = Vllm(ledger, VllmProgram(Path(sys.executable), "vllm 0", DeviceKind.CPU))
        handle = await adapter.start(vllm_spec(run_dir, model=tmp_path).model_copy(update={"cores": (4095,)}))
        await adapter.stop(handle, 0)
