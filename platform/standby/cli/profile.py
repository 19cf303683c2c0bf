"""``standby profile``: what an endpoint's engines spend their time on, recorded where they run, collected into one folder."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from standby.cli.endpoints import Name
from standby.cli.models import segment
from standby.cli.output import console, print_json, size
from standby.cli.session import JsonOption, Options, options
from standby.domain.errors import InvalidInput, NotFound, StandbyError
from standby.domain.profiles import DEFAULT_SECONDS, MANIFEST, MOST_SECONDS

if TYPE_CHECKING:
    from standby.cli.client import Client

LOOK_S: Final = 0.5
MOST_SILENT: Final = 3
"""Looks in a row that a node may leave unanswered; one that has forgotten the profile has been started anew."""
_SHORT_ID: Final = 8

Json = dict[str, Any]


def profile(
    ctx: typer.Context,
    endpoint: Name,
    seconds: Annotated[int, typer.Option(min=1, max=MOST_SECONDS, help="How long.")] = DEFAULT_SECONDS,
    out: Annotated[Path | None, typer.Option(help="New or empty folder for the results; default: profile-ENDPOINT-ID.")] = None,
    node: Annotated[bool, typer.Option("--node", help="The node agents' own processes as well.")] = False,
    native: Annotated[bool, typer.Option("--native", help="Also frames of C and C++; pauses the engine longer.")] = False,
    json: JsonOption = False,
) -> None:
    """Profile an endpoint's ready engines while they work; needs an administrator's key.

    Records Python's stacks (py-spy: speedscope file and flame graph), torch's trace where a vLLM engine was started with the
    option profile=true, and writes down the command lines of NVIDIA's profilers. manifest.json says what is there, and what
    is not and why. Results stay on the nodes; those of this machine are copied. Ctrl-C ends it on the nodes as well.

    Example: standby profile smol --seconds 20 --out profile
    """
    identity = uuid.uuid4().hex
    folder = out if out is not None else Path(f"profile-{endpoint}-{identity[:_SHORT_ID]}")
    _require_empty(folder)
    session = options(ctx, json)
    body = {"seconds": seconds, "node": node, "native": native, "id": identity}
    told = asyncio.run(_profiled(session, endpoint, body))
    manifest = collect(told, folder)
    if session.json:
        print_json(manifest)
    else:
        _print(manifest, folder)


async def _profiled(session: Options, endpoint: str, body: Json) -> Json:
    """Return what was started, with each node's last word."""
    async with session.client() as client:
        begun: Json = await client.call("POST", f"/api/v1/endpoints/{segment(endpoint)}/profiles", body=body)
        try:
            with console(sys.stderr).status("") if sys.stderr.isatty() else _Quiet() as shown:
                nodes, lost = await until_done(client, begun["nodes"], shown)
        except asyncio.CancelledError:
            # Ctrl-C: the nodes would notice by themselves, some seconds later.
            await _stop(client, begun["nodes"])
            raise
    return {**begun, "nodes": nodes, "failures": [*begun["failures"], *lost]}


class _Quiet:
    """Shows nothing: standard error is no terminal."""

    def __enter__(self) -> _Quiet:
        return self

    def __exit__(self, *_: object) -> None: ...

    def update(self, _text: str) -> None:
        """Say nothing."""


async def until_done(
    client: Client, nodes: Sequence[Json], shown: Any, look_s: float = LOOK_S
) -> tuple[list[Json], list[Json]]:
    """Look until each node's part is done; returns how they stand, and which nodes were lost meanwhile and why.

    One that dies takes only its own part with it. Raises what the last one said where none is left.
    """
    standing, lost = {one["node"]: one for one in nodes}, {}
    silent: Counter[str] = Counter()
    while open_ones := [name for name, one in standing.items() if one["state"] != "done"]:
        shown.update("; ".join(_progress(standing[name]) for name in open_ones))
        await asyncio.sleep(look_s)
        looks = await asyncio.gather(*(_look(client, standing[name]) for name in open_ones))
        for name, found in zip(open_ones, looks, strict=True):
            if not isinstance(found, StandbyError):
                standing[name], silent[name] = found, 0
                continue
            silent[name] += 1
            if isinstance(found, NotFound) or silent[name] == MOST_SILENT:
                lost[name] = found
                del standing[name]
    if not standing and lost:
        raise next(iter(lost.values()))
    failures = [{"node": name, "code": one.code, "message": one.message, "remedy": one.remedy} for name, one in lost.items()]
    return list(standing.values()), failures


async def _look(client: Client, standing: Json) -> Json | StandbyError:
    try:
        found: Json = await client.call("GET", _path(standing))
    except StandbyError as error:
        return error
    return found


async def _stop(client: Client, nodes: Sequence[Json]) -> None:
    results = await asyncio.gather(*(client.call("DELETE", _path(one)) for one in nodes), return_exceptions=True)
    for one, result in zip(nodes, results, strict=True):
        if isinstance(result, StandbyError):
            print(f"{one['node']} was not told to stop: {result.message}", file=sys.stderr)
        elif isinstance(result, dict):
            print(f"stopped on {one['node']}; what was recorded is in {result['folder']}", file=sys.stderr)


def _path(standing: Json) -> str:
    return f"/api/v1/nodes/{segment(standing['node'])}/profiles/{standing['id']}"


def _progress(standing: Json) -> str:
    if standing["state"] == "writing":
        return f"{standing['node']}: writing"
    return f"{standing['node']}: {standing['recorded_s']:.0f} of {standing['seconds']} s"


# ---- the folder ------------------------------------------------------------------------------------------------------


def collect(told: Json, folder: Path) -> Json:
    """Copy what lies on this machine into ``folder``, each node's below its name, and return the manifest written there.

    A node's folder is known by the profile's id in its own manifest: a path of the same name elsewhere is not taken for it.
    Raises InvalidInput where the folder cannot be written.
    """
    nodes = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for one in told["nodes"]:
            source = Path(one["folder"])
            # A node's name is a folder's here: one that is a path would lead out of ours.
            target = folder / one["node"]
            here = target.resolve().parent == folder.resolve() and _is_here(source, told["id"])
            if here:
                shutil.copytree(source, target, symlinks=True)
            elsewhere = "" if here else f"the files are on node {one['node']} in {source}: this machine cannot read them there"
            nodes.append({**one, "copied": here, "not_copied": elsewhere})
        manifest = {"id": told["id"], "endpoint": told["endpoint"], "nodes": nodes, "failures": told["failures"]}
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
        raise InvalidInput(
            f"the profile cannot be written to {folder}: {error.strerror or error}", remedy="give another folder by --out"
        ) from error
    return manifest


def _is_here(source: Path, identity: str) -> bool:
    try:
        return bool(json.loads((source / MANIFEST).read_bytes())["id"] == identity)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _require_empty(folder: Path) -> None:
    """Raise InvalidInput unless ``folder`` is new or empty: what lies there must not be taken for part of the profile."""
    try:
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be read: {error.strerror}", remedy="give another folder by --out") from error
    if taken:
        raise InvalidInput(f"{folder} is no empty folder", remedy="give a new one by --out")


def _print(manifest: Json, folder: Path) -> None:
    for one in manifest["nodes"]:
        early = f", ended early: {one['stopped']}" if one["stopped"] else ""
        print(f"{one['node']}: {one['recorded_s']:g} s recorded{early}")
        base = folder / one["node"] if one["copied"] else Path(one["folder"])
        for file in one["files"]:
            print(f"  {base / file['name']} ({size(file['bytes'])}): {file['what']}")
        for left in one["left_out"]:
            print(f"  left out: {left['what']}: {left['reason']}{'; ' + left['remedy'] if left['remedy'] else ''}")
        for command in one["commands"]:
            print(f"  not run, for a machine with NVIDIA's profilers: {command}")
        if one["not_copied"]:
            print(f"  {one['not_copied']}")
    for lost in manifest["failures"]:
        print(f"{lost['node']}: {lost['message']}")
    print(f"all of it: {folder / MANIFEST}")
