"""What llama.cpp promises of sleep beyond the contract: the weights leave memory, and so does the cache that is not used."""

from __future__ import annotations

import pytest

from standby.runtime.procfs import process_stat, resident
from support.engine_case import engine_case
from support.engine_client import ANSWER, ask, text_of
from support.fake_engine_spec import running
from support.real_model import real_model_path

pytestmark = pytest.mark.real_engine


async def test_an_engine_asleep_is_stopped_and_has_given_everything_back() -> None:
    async with (
        engine_case("llama_cpp") as case,
        running(case.adapter, case.own_copy(case.spec(instance="own", slots=4))) as handle,
    ):
        first = text_of(await ask(handle))
        result = await case.adapter.suspend(handle)
        stat = process_stat(handle.pid)
        assert stat is not None
        assert stat.stopped
        assert result.resident_before - result.resident_after > 0.8 * real_model_path().stat().st_size
        # 4 slots of 2048 tokens promise 180 MiB of key-value cache; what is unused is given back too.
        assert resident(handle.pid).anonymous < 64 * 2**20
        assert result.kept == ""
        await case.adapter.resume(handle)
        await case.adapter.probe(handle, 60)
        assert text_of(await ask(handle)) == first == ANSWER
