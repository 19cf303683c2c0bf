"""Where vLLM is, and what is said when it is not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from standby.domain.errors import ConfigurationError
from standby.domain.node import DeviceKind
from standby.runtime.engines.vllm_program import find_program
from support.vllm import needs_vllm, vllm_program


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
