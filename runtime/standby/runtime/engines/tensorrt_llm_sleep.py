"""Speaks to the routes by which TensorRT-LLM gives its device memory back and takes it again.

They are the engine's only routes that ask for a secret: each request is signed over method, path, time, a number used
once, and body. Written from the sources of the change that brings them (TensorRT-LLM pull request 19016), which was
open when this was written; where they answer otherwise, sleeping is refused with their words.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
import time
from http import HTTPStatus
from typing import Any, Final

import httpx

from standby.domain.errors import EngineError

KEY_VARIABLE: Final = "TRTLLM_RUNTIME_CONTROL_API_KEY"
_DOMAIN: Final = b"trtllm-runtime-control-v1"
_AWAKE: Final = "running"
_SHOWN: Final = 300


class RuntimeControl:
    """Signed requests to one engine at ``host`` and ``port``; ``key`` was given to it at its start."""

    def __init__(self, host: str, port: int, key: str) -> None:
        self._base = f"http://{host}:{port}"
        self._key = key.encode()

    async def awake(self, deadline_s: float) -> bool:
        """Return whether all memory is in place. Raises EngineError where the engine does not say."""
        return (await self._ask("GET", "/memory_status", deadline_s)).get("state") == _AWAKE

    async def offered(self, deadline_s: float) -> bool:
        """Return whether the engine has these routes; one that does not answer in time may have them."""
        try:
            return (await self._request("GET", "/memory_status", deadline_s)).status_code == HTTPStatus.OK
        except EngineError:
            return True

    async def release(self, deadline_s: float) -> None:
        """Give weights and key-value cache back; the weights move to host memory. Raises EngineError."""
        await self._ask("POST", "/release_memory", deadline_s)

    async def resume(self, deadline_s: float) -> None:
        """Take everything back. Raises EngineError."""
        await self._ask("POST", "/resume_memory", deadline_s)

    async def _ask(self, method: str, path: str, deadline_s: float) -> dict[str, Any]:
        answer = await self._request(method, path, deadline_s)
        if answer.status_code != HTTPStatus.OK:
            raise EngineError(f"engine answered {method} {path} with {answer.status_code}: {answer.text[:_SHOWN]}")
        try:
            content = json.loads(answer.content or b"{}")
        except ValueError:
            content = {}
        return content if isinstance(content, dict) else {}

    async def _request(self, method: str, path: str, deadline_s: float) -> httpx.Response:
        # No certificates are read for plain HTTP to this machine, and no proxy of the environment stands between.
        plain = httpx.AsyncClient(base_url=self._base, verify=False, trust_env=False, timeout=deadline_s)  # noqa: S501 - no TLS
        try:
            async with asyncio.timeout(deadline_s), plain as http:
                return await http.request(method, path, headers=self._signed(method, path, b""))
        except (httpx.HTTPError, TimeoutError) as error:
            raise EngineError(f"engine did not answer {method} {path} within {deadline_s:g} s: {error!r}") from error

    def _signed(self, method: str, path: str, body: bytes) -> dict[str, str]:
        moment, once = str(int(time.time())), secrets.token_hex(16)
        message = b"\n".join((_DOMAIN, method.encode(), path.encode(), moment.encode(), once.encode(), body))
        return {
            "x-trtllm-runtime-control-auth": f"sha256={hmac.new(self._key, message, hashlib.sha256).hexdigest()}",
            "x-trtllm-runtime-control-timestamp": moment,
            "x-trtllm-runtime-control-nonce": once,
        }
