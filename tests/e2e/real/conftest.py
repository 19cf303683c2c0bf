"""One deployment for each module: a real S3 server with the real model in it, and ``standby up``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from support.deployment import NO_LISTING
from support.fake_engine_spec import short_dir
from support.real_model import real_model_path
from support.s3_server import S3Server, s3_server
from support.user import Up, up

BUCKET = "models"
MODEL_URI = "s3://models/smollm2/"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short folder, so that the engines' sockets fit below it and nothing of a test lies anywhere else."""
    with short_dir() as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def s3(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[S3Server]:
    async with s3_server(tmp_path_factory.mktemp("s3"), BUCKET) as server:
        await server.upload(BUCKET, "smollm2/model.gguf", real_model_path())
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(s3: S3Server) -> AsyncIterator[Up]:
    with short_dir() as home:
        async with up(home / "state", {**s3.env(), **NO_LISTING}) as found:
            yield found
