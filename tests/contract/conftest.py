"""The engines under the contract: one adapter each for the whole run, and one engine that only answers questions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from support.engine_case import KINDS, Case, Served, engine_case
from support.fake_engine_spec import running
from support.vllm import needs_vllm

MARKS = {
    "llama_cpp": (pytest.mark.real_engine,),
    "vllm": (pytest.mark.vllm, pytest.mark.timeout(300), needs_vllm),
}


@pytest_asyncio.fixture(
    scope="session", loop_scope="session", params=[pytest.param(kind, marks=MARKS.get(kind, ())) for kind in KINDS]
)
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Case]:
    """An adapter; with vLLM its zygote, which takes seconds to hatch."""
    async with engine_case(request.param) as case:
        yield case


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def served(engine: Case) -> AsyncIterator[Served]:
    """One engine for all questions: a start of vLLM takes seconds."""
    async with running(engine.adapter, engine.own_copy(engine.spec(instance="served", slots=4))) as handle:
        yield Served(engine, handle)


@pytest.fixture
def case(engine: Case) -> Iterator[Case]:
    """The engine for tests that start their own; what they started has to be gone at their end."""
    before = set(engine.ledger.survivors())
    yield engine
    assert set(engine.ledger.survivors()) - before == set()
