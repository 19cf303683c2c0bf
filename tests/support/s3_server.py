"""A real S3 server (SeaweedFS) for tests: ``async with s3_server(tmp_path, "bucket") as s3``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from standby.artifacts.local_s3 import LocalS3

S3Server = LocalS3


@asynccontextmanager
async def s3_server(folder: Path, *buckets: str) -> AsyncIterator[S3Server]:
    """Start a server that keeps its data below ``folder``, create ``buckets``, stop it at the end."""
    async with LocalS3(folder / "s3") as server:
        for bucket in buckets:
            await server.create_bucket(bucket)
        yield server
