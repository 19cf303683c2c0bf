"""One deployment for each module: a real S3 server with the real model in it, and ``standby up``."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from support.real_model import real_model_path
from support.s3_server import S3Server, s3_server
from support.user import Up, up

BUCKET = "models"
MODEL_URI = "s3://models/smollm2/"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def s3(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[S3Server]:
    async with s3_server(tmp_path_factory.mktemp("s3"), BUCKET) as server:
        await server.upload(BUCKET, "smollm2/model.gguf", real_model_path())
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Up]:
    async with up(tmp_path_factory.mktemp("up") / "state", s3.env()) as found:
        yield found
