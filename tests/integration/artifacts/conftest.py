"""One real S3 server for all tests of this folder, and a bucket of its own for each."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from support.s3_server import S3Server, s3_server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def s3(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[S3Server]:
    async with s3_server(tmp_path_factory.mktemp("artifacts")) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def bucket(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new bucket; the process has the server's credentials in its environment."""
    for name, value in s3.env().items():
        monkeypatch.setenv(name, value)
    name = f"test-{secrets.token_hex(6)}"
    await s3.create_bucket(name)
    return name
