"""The console's files: what is served, with which headers, and that nothing else is or is needed."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import AsyncIterator, MutableMapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from starlette.applications import Starlette

from standby.console import files
from standby.console.files import POLICY, console_routes, read_files

STATIC = Path(files.__file__).with_name("static")
LIMIT_BYTES = 300_000
_IMPORT = re.compile(r'^import\s[^;]*?from\s+"([^"]+)"|^import\s+"([^"]+)"', re.MULTILINE)


@pytest_asyncio.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(Starlette(routes=console_routes()))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as found:
        yield found


async def test_the_page_is_served_without_a_key(client: httpx.AsyncClient) -> None:
    answer = await client.get("/console/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.content == (STATIC / "index.html").read_bytes()


async def test_the_bare_path_leads_to_the_page(client: httpx.AsyncClient) -> None:
    """By a relative address, so that it is right below a proxy's own path as well."""
    answer = await client.get("/console")
    assert (answer.status_code, answer.headers["location"]) == (308, "console/")
    followed = await client.get("/console", follow_redirects=True)
    assert (followed.status_code, str(followed.url)) == (200, "http://gateway/console/")


@pytest.mark.parametrize("path", [*sorted(read_files()), "", "no-such-file", "vendor/"])
async def test_every_answer_lets_nothing_foreign_run(client: httpx.AsyncClient, path: str) -> None:
    headers = (await client.get(f"/console/{path}")).headers
    assert headers["content-security-policy"] == POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-cache"
    assert "unsafe" not in POLICY
    assert "default-src 'none'" in POLICY


@pytest.mark.parametrize(
    ("path", "content_type"),
    [
        ("app.js", "text/javascript; charset=utf-8"),
        ("vendor/uplot.js", "text/javascript; charset=utf-8"),
        ("console.css", "text/css; charset=utf-8"),
        ("icon.svg", "image/svg+xml"),
        ("vendor/htm.LICENSE.txt", "text/plain; charset=utf-8"),
    ],
)
async def test_each_kind_of_file_says_what_it_is(client: httpx.AsyncClient, path: str, content_type: str) -> None:
    answer = await client.get(f"/console/{path}")
    assert (answer.status_code, answer.headers["content-type"]) == (200, content_type)


async def test_a_file_that_the_browser_has_is_not_sent_again(client: httpx.AsyncClient) -> None:
    first = await client.get("/console/app.js")
    etag = first.headers["etag"]
    for header in (etag, f'"other", W/{etag}'):
        again = await client.get("/console/app.js", headers={"if-none-match": header})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    changed = await client.get("/console/app.js", headers={"if-none-match": '"other"'})
    assert (changed.status_code, changed.content) == (200, first.content)


async def test_a_head_request_has_no_body(client: httpx.AsyncClient) -> None:
    answer = await client.head("/console/app.js")
    assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize(
    "path",
    [
        "../files.py",
        "vendor/../../files.py",
        "vendor/../app.js",
        "/etc/passwd",
        "./app.js",
        "vendor//uplot.js",
        "app.js\0.css",
        "..\\files.py",
        "vendor/README.md",
        "vendor",
    ],
)
async def test_only_exact_names_are_served(path: str) -> None:
    """Paths are looked up in a table and never joined to a folder."""
    # A client would tidy the path up; servers give it to the application as it was sent, decoded.
    scope = {"type": "http", "method": "GET", "path": f"/console/{path}", "query_string": b"", "headers": []}
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    await Starlette(routes=console_routes())(scope, receive, send)
    assert [message.get("status", message.get("body")) for message in sent] == [404, b"there is no such file in the console\n"]


async def test_nothing_but_reading_is_possible(client: httpx.AsyncClient) -> None:
    assert [(await client.request(method, "/console/app.js")).status_code for method in ("POST", "PUT", "DELETE")] == [405] * 3


def test_every_import_is_there_and_is_fetched_at_once() -> None:
    """A module that is found only while another one is read costs the page a round trip more."""
    page = (STATIC / "index.html").read_text()
    for path in read_files():
        if not path.endswith(".js") or path.startswith("vendor/"):
            continue
        for one, other in _IMPORT.findall((STATIC / path).read_text()):
            wanted = posixpath.normpath(posixpath.join(posixpath.dirname(path), one or other))
            assert wanted in read_files(), f"{path} imports {wanted}"
            assert f'<link rel="modulepreload" href="{wanted}">' in page, f"{wanted} is not preloaded"


def test_what_the_page_preloads_is_there() -> None:
    page = (STATIC / "index.html").read_text()
    named = re.findall(r'(?:href|src)="([^"]+)"', page)
    assert len(named) == len(set(named)) > 20
    assert set(named) <= read_files().keys()


def test_the_whole_page_is_small() -> None:
    served = {path: file for path, file in read_files().items() if not path.endswith(".txt")}
    assert sum(len(file.content) for file in served.values()) <= LIMIT_BYTES


def test_nothing_refers_to_another_place() -> None:
    for path, file in read_files().items():
        if path.startswith("vendor/") or path == "icon.svg":
            continue
        assert not re.search(rb"https?://|@import|url\(", file.content), path


def test_no_markup_is_made_from_text() -> None:
    """What the feed says becomes text nodes only."""
    for path, file in read_files().items():
        if path.endswith(".js") and not path.startswith("vendor/"):
            assert not re.search(
                rb"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", file.content
            ), path


def test_vendored_files_are_the_published_ones() -> None:
    """Their digests, versions and licences stand in the folder's README."""
    readme = (STATIC / "vendor" / "README.md").read_text()
    vendored = [path for path in (STATIC / "vendor").iterdir() if path.suffix in {".js", ".css"}]
    assert len(vendored) == 3
    for path in vendored:
        row = next(line for line in readme.splitlines() if line.startswith(f"| `{path.name}` |"))
        assert hashlib.sha256(path.read_bytes()).hexdigest() in row
        for licence in re.findall(r"`([\w.]+LICENSE\.txt)`", row):
            assert (STATIC / "vendor" / licence).stat().st_size > 500
