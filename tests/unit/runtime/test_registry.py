"""Which engines this machine can run, and what is said of those that it cannot."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from standby.domain.errors import ConfigurationError
from standby.domain.model import EngineKind
from standby.runtime.engines.fake import FakeEngine
from standby.runtime.engines.registry import EngineRegistry, RuntimeSettings
from standby.runtime.process_ledger import ProcessLedger
from support.fake_engine_spec import FAKE_ENGINE_PROGRAM, fake_spec


def test_the_fake_engine_exists_only_where_it_was_asked_for(ledger: ProcessLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STANDBY_FAKE_ENGINE", raising=False)
    assert EngineRegistry.discover(ledger).available() == (EngineKind.LLAMA_CPP,)
    monkeypatch.setenv("STANDBY_FAKE_ENGINE", str(FAKE_ENGINE_PROGRAM))
    assert EngineRegistry.discover(ledger).available() == (EngineKind.LLAMA_CPP, EngineKind.FAKE)


def test_looking_for_engines_loads_none(ledger: ProcessLedger) -> None:
    EngineRegistry.discover(ledger, RuntimeSettings())
    assert "xllamacpp" not in sys.modules


def test_an_engine_that_is_not_installed_says_how_to_get_it() -> None:
    with pytest.raises(ConfigurationError, match=r"pip install 'standby\[llama-cpp\]'"):
        EngineRegistry({}).adapter(EngineKind.LLAMA_CPP)


async def test_a_run_folder_too_deep_for_a_socket_is_refused_with_its_length(engine: FakeEngine, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="bytes, the limit is 107") as caught:
        await engine.start(fake_spec(tmp_path / ("d" * 100)))
    assert "STANDBY_STATE_DIR" in caught.value.remedy
