"""HTTP to the gateway: JSON calls, raw invocations and the event stream; replies become the tree's errors."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, Final, Self

import httpx

from standby.cli.connection import Connection
from standby.domain.errors import InvalidInput, StandbyError, Unavailable
from standby.wire.headers import TENANT

EVENT_SILENCE_S: Final = 30.0
_MAX_SHOWN: Final = 300


class Client:
    """One connection to the gateway; an async context manager.

    Every method raises Unavailable where nothing answers, and the error of the tree that the reply's ``code`` names.
    """

    def __init__(self, connection: Connection, *, tenant: str | None = None, timeout_s: float = 60.0) -> None:
        headers = {"user-agent": "standby-cli"}
        if connection.api_key is not None:
            headers["authorization"] = f"Bearer {connection.api_key}"
        if tenant is not None:
            headers[TENANT.decode()] = tenant
        self._url = connection.url
        # A proxy of the environment is for the outside: it cannot reach this machine's loopback.
        self._http = httpx.AsyncClient(
            base_url=connection.url, headers=headers, timeout=timeout_s, trust_env=not _is_loopback(connection.url)
        )

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.aclose()

    async def call(self, method: str, path: str, *, body: object = None, params: Mapping[str, str] | None = None) -> Any:
        """Make one request and return the JSON answer."""
        with self._translated():
            response = await self._http.request(method, path, json=body, params=params)
        raise_for_error(response.status_code, response.content)
        try:
            return response.json()
        except ValueError as error:
            raise Unavailable(
                f"{self._url} answers {path} with something else than JSON: {response.text[:_MAX_SHOWN]!r}",
                remedy="check that --url names a standby gateway",
            ) from error

    @asynccontextmanager
    async def post_raw(self, path: str, body: bytes) -> AsyncIterator[httpx.Response]:
        """Post ``body`` as it is and yield the response with its body unread; error replies are raised."""
        with self._translated():
            request = self._http.build_request("POST", path, content=body, headers={"content-type": "application/json"})
            response = await self._http.send(request, stream=True)
            try:
                if response.status_code >= 400:
                    raise_for_error(response.status_code, await response.aread())
                yield response
            finally:
                await response.aclose()

    @asynccontextmanager
    async def post_raw_while(
        self, path: str, body: bytes, background: AbstractAsyncContextManager[None] | None
    ) -> AsyncIterator[httpx.Response]:
        """Like ``post_raw``, with ``background`` running until the answer begins."""
        async with AsyncExitStack() as stack:
            if background is not None:
                await stack.enter_async_context(background)
            async with self.post_raw(path, body) as response:
                await stack.aclose()
                yield response

    async def events(self, endpoint: str, *, replay: int = 0) -> AsyncIterator[dict[str, Any]]:
        """Yield the endpoint's events as they happen, until the caller stops or the gateway ends the stream."""
        async for event in self.event_stream({"endpoint": endpoint, "replay": str(replay)}):
            yield event

    async def event_stream(self, params: Mapping[str, str]) -> AsyncIterator[dict[str, Any]]:
        """Yield events as ``GET /api/v1/events`` takes its parameters, until the gateway ends the stream."""
        async for _, event in self.server_events("/api/v1/events", params):
            yield event

    async def server_events(
        self, path: str, params: Mapping[str, str], *, silence_s: float = EVENT_SILENCE_S
    ) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Yield a stream's events with their kinds, until the gateway ends it; Unavailable after ``silence_s`` of silence."""
        with self._translated():
            async with self._http.stream("GET", path, params=params, timeout=silence_s) as response:
                if response.status_code >= 400:
                    raise_for_error(response.status_code, await response.aread())
                kind = ""
                async for line in response.aiter_lines():
                    if line.startswith("event:"):
                        kind = line[6:].strip()
                    elif line.startswith("data:"):
                        yield kind, json.loads(line[5:])

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise Unavailable(
                f"no gateway answers at {self._url}: {error}", remedy="start it with `standby up`, or correct --url"
            ) from error
        except httpx.TimeoutException as error:
            raise Unavailable(
                f"the gateway at {self._url} did not answer in time ({type(error).__name__})",
                remedy="try again, or see `standby status`",
            ) from error
        except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise InvalidInput(f"--url {self._url!r} is no URL: {error}", remedy="e.g. http://127.0.0.1:8080") from error
        except httpx.HTTPError as error:
            raise Unavailable(
                f"the connection to the gateway at {self._url} broke: {error or type(error).__name__}", remedy="try again"
            ) from error


def raise_for_error(status: int, content: bytes) -> None:
    """Raise the error of the tree that an error reply names: by its code, else by its HTTP status."""
    if status < 400:
        return
    message, code, remedy = _said(status, content)
    # The data routes repeat the remedy inside the message, for clients that show nothing else.
    raise error_class(code, status)(message.removesuffix(f"; {remedy}"), remedy=remedy)


def _said(status: int, content: bytes) -> tuple[str, object, str]:
    """Return message, code and remedy of an error reply, in our envelope or in AWS's."""
    try:
        reply = json.loads(content)
        if "error" not in reply and "Message" in reply:
            return str(reply["Message"]), reply.get("StandbyCode"), str(reply.get("Remedy") or "")
        error = reply["error"]
        return str(error["message"]), error.get("code"), str(error.get("remedy") or "")
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"HTTP {status}: {content[:_MAX_SHOWN].decode(errors='replace')!r}", None, ""


def error_class(code: object, status: int) -> type[StandbyError]:
    """Return the class of ``code``, else the first one with that HTTP status, else the base."""
    # The first one: a component's own class below inherits the code, and may be made from something else than words.
    with_code = next((kind for kind in _tree(StandbyError) if kind.code == code), None)
    with_status = next((kind for kind in _tree(StandbyError) if kind.http_status == status), StandbyError)
    return with_code or with_status


def _tree(kind: type[StandbyError]) -> Iterator[type[StandbyError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _tree(below)


def _is_loopback(url: str) -> bool:
    try:
        host = httpx.URL(url).host
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except (ValueError, httpx.InvalidURL):
        return False
