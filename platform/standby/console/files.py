"""The console's static files: read once, served by their exact names only, with headers that let nothing else in."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

INDEX: Final = "index.html"
CONTENT_TYPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        ".html": "text/html; charset=utf-8",
        ".js": "text/javascript; charset=utf-8",
        ".css": "text/css; charset=utf-8",
        ".svg": "image/svg+xml",
        ".txt": "text/plain; charset=utf-8",
    }
)
# No 'unsafe-inline' anywhere: a name or a reason that were taken for markup could still run and load nothing.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "content-security-policy": POLICY,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        # Asked for again each time and answered by 304: after an update nobody runs old and new modules together.
        "cache-control": "no-cache",
    }
)


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file of the console."""

    content: bytes
    content_type: str
    etag: str


def read_files() -> Mapping[str, StaticFile]:
    """Return the console's files by their path below ``/console/``; a kind that has no content type is left out."""
    return MappingProxyType(dict(_walk(files("standby.console") / "static", PurePosixPath())))


def console_routes() -> list[Route]:
    """Return the routes of the console, which need no key: what it shows is asked for with the caller's key."""
    table = read_files()

    async def serve(request: Request) -> Response:
        found = table.get(request.path_params["name"] or INDEX)
        if found is None:
            # The same headers, so that not even an error page of this path could be made to run anything.
            return PlainTextResponse("there is no such file in the console\n", status_code=404, headers=dict(HEADERS))
        headers = {**HEADERS, "etag": found.etag}
        if found.etag in _etags(request.headers.get("if-none-match", "")):
            return Response(status_code=304, headers=headers)
        return Response(found.content, headers=headers, media_type=found.content_type)

    async def enter(_request: Request) -> Response:
        # Relative, so that a proxy may serve the gateway below a path of its own.
        return RedirectResponse("console/", status_code=308)

    return [Route("/console", enter, methods=["GET"]), Route("/console/{name:path}", serve, methods=["GET"])]


def _walk(folder: Traversable, below: PurePosixPath) -> list[tuple[str, StaticFile]]:
    found: list[tuple[str, StaticFile]] = []
    for entry in folder.iterdir():
        path = below / entry.name
        if entry.is_dir():
            found += _walk(entry, path)
        elif (content_type := CONTENT_TYPES.get(path.suffix)) is not None:
            content = entry.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            found.append((path.as_posix(), StaticFile(content, content_type, etag)))
    return found


def _etags(header: str) -> set[str]:
    return {one.strip().removeprefix("W/") for one in header.split(",")}
