"""A real S3 server (SeaweedFS) for tests: ``async with s3_server(tmp_path, "bucket") as s3``."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx

from standby.artifacts.local_s3 import LocalS3

S3Server = LocalS3


@asynccontextmanager
async def s3_server(folder: Path, *buckets: str) -> AsyncIterator[S3Server]:
    """Start a server that keeps its data below ``folder``, create ``buckets``, stop it at the end."""
    async with LocalS3(folder / "s3") as server:
        for bucket in buckets:
            await server.create_bucket(bucket)
        yield server


async def put_raw(s3: S3Server, bucket: str, key: str, content: bytes = b"", *, setting: str = "") -> None:
    """Store an object under any key, also one that obstore would not send: with a trailing slash or a line break.

    With no key and ``setting``, e.g. ``versioning``, the content is that setting of the bucket.
    """
    query = f"{setting}=" if setting else ""
    path, host = quote(f"/{bucket}/{key}"), urlsplit(s3.url).netloc
    now = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    scope = f"{now[:8]}/{s3.region}/s3/aws4_request"
    signed = {"host": host, "x-amz-content-sha256": "UNSIGNED-PAYLOAD", "x-amz-date": now}
    lines = "".join(f"{name}:{value}\n" for name, value in signed.items())
    request = f"PUT\n{path}\n{query}\n{lines}\n{';'.join(signed)}\nUNSIGNED-PAYLOAD"
    to_sign = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    secret = f"AWS4{s3.secret_key}".encode()
    for part in (*scope.split("/"), to_sign):
        secret = hmac.digest(secret, part.encode(), "sha256")
    credential = f"Credential={s3.access_key}/{scope}, SignedHeaders={';'.join(signed)}, Signature={secret.hex()}"
    async with httpx.AsyncClient(trust_env=False) as client:
        headers = {**signed, "authorization": f"AWS4-HMAC-SHA256 {credential}"}
        (await client.put(f"{s3.url}{path}?{query}", content=content, headers=headers)).raise_for_status()
