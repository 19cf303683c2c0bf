"""``standby doctor``: what this machine has, what it lacks, and how to get it."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import psutil
import typer

from standby.artifacts.local_s3 import weed_binary
from standby.bus.embedded import find_binary
from standby.cli.output import print_json, print_table, size
from standby.cli.session import JsonOption, Options, options
from standby.domain.errors import ConfigurationError, StandbyError, Unavailable

_PYTHON: Final = (3, 11)
_MIB: Final = 1024 * 1024
NEEDED_MEMORY: Final = 512 * _MIB
NEEDED_DISK: Final = 1024 * _MIB
_GATEWAY_LIMIT_S: Final = 5.0
GATEWAY: Final = "gateway"
_CGROUP: Final = Path("/sys/fs/cgroup/cgroup.controllers")


class Verdict(StrEnum):
    """What a check found."""

    OK = "ok"
    ABSENT = "absent"  # optional, and not there
    MISSING = "missing"  # needed


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    name: str
    verdict: Verdict
    detail: str
    remedy: str = ""


def doctor(ctx: typer.Context, json: JsonOption = False) -> None:
    """Check this machine: Python, nats-server, engine, memory, disk, state folder, gateway.

    With an administrator's key also the engines of every node: which run there, and why the others do not.

    Ends with exit code 3 if something needed is missing; what only the demo or some features need is "absent".
    """
    session = options(ctx, json)
    findings = [check() for check in checks(session)]
    if any(item.name == GATEWAY and item.verdict is Verdict.OK for item in findings):
        findings += check_engines(session)
    if session.json:
        print_json({"findings": [_plain(item) for item in findings], "ok": all(_is_fine(item) for item in findings)})
    else:
        print_table(
            ("CHECK", "RESULT", "DETAIL", "HOW TO GET IT"),
            [(item.name, item.verdict.value, item.detail, item.remedy) for item in findings],
            empty="",
        )
    lacking = [item.name for item in findings if not _is_fine(item)]
    if lacking:
        raise ConfigurationError(f"this machine lacks: {', '.join(lacking)}", remedy="see the last column for each")


def checks(session: Options) -> list[Callable[[], Finding]]:
    """Return the checks, each a function without arguments."""
    return [
        lambda: check_python(sys.version_info[:3]),
        lambda: check_binary("nats-server", find_binary, needed=True, use="the embedded bus; not needed with STANDBY_NATS_URL"),
        lambda: check_package("llama.cpp engine", "xllamacpp", "pip install 'standby[llama-cpp]'"),
        lambda: check_binary("SeaweedFS", weed_binary, needed=False, use="the demo's local S3 server"),
        lambda: check_amount(
            "free memory", psutil.virtual_memory().available, NEEDED_MEMORY, "close programs, or use a larger machine"
        ),
        lambda: check_state_folder(session.folder),
        lambda: check_amount(
            "free disk",
            shutil.disk_usage(_existing(session.folder)).free,
            NEEDED_DISK,
            "make room, or choose another --state-dir",
        ),
        check_cgroup,
        lambda: check_gateway(session),
    ]


def check_python(found: tuple[int, ...]) -> Finding:
    """Is Python new enough?"""
    shown = ".".join(str(part) for part in found)
    if found[:2] < _PYTHON:
        return Finding(
            "Python", Verdict.MISSING, f"{shown}, needs {_PYTHON[0]}.{_PYTHON[1]} or newer", "install a newer Python"
        )
    return Finding("Python", Verdict.OK, shown)


def check_binary(name: str, find: Callable[[], Path | str], *, needed: bool, use: str) -> Finding:
    """Is the program there? ``find`` raises ConfigurationError with the remedy where it is not."""
    try:
        return Finding(name, Verdict.OK, str(find()))
    except ConfigurationError as error:
        return Finding(name, Verdict.MISSING if needed else Verdict.ABSENT, f"not found; for {use}", error.remedy)


def check_package(name: str, package: str, remedy: str) -> Finding:
    """Is the Python package there? It is not imported: a broken native library must not end the doctor."""
    try:
        if importlib.util.find_spec(package) is None:
            return Finding(name, Verdict.MISSING, f"no package {package}", remedy)
        return Finding(name, Verdict.OK, f"{package} {version(package)}")
    except PackageNotFoundError:
        return Finding(name, Verdict.OK, f"{package}, unknown version")


def check_amount(name: str, available: int, needed: int, remedy: str) -> Finding:
    """Is there enough of it? In bytes."""
    if available < needed:
        return Finding(name, Verdict.MISSING, f"{size(available)}, needs {size(needed)}", remedy)
    return Finding(name, Verdict.OK, size(available))


def check_state_folder(folder: Path) -> Finding:
    """Can the state be written? Tried for real, since permissions, quotas and read-only mounts all show only then."""
    place = next((place for place in (folder, *folder.absolute().parents) if place.exists()), Path("/"))
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".standby-doctor-"):
            return Finding("state folder", Verdict.OK, str(folder))
    except OSError as error:
        return Finding(
            "state folder", Verdict.MISSING, f"{place} cannot be written: {error.strerror}", "choose another --state-dir"
        )


def check_cgroup() -> Finding:
    """Is there cgroup v2? Only for limits per engine."""
    if _CGROUP.is_file():
        return Finding("cgroup v2", Verdict.OK, "limits per engine are possible")
    return Finding("cgroup v2", Verdict.ABSENT, "no limits per engine", "mount cgroup v2 at /sys/fs/cgroup; not needed")


def check_gateway(session: Options) -> Finding:
    """Does a gateway answer, and does it take the key? Absent is fine: nothing may have been started yet."""
    name = GATEWAY
    try:
        connection = session.connection()
    except Unavailable as error:
        return Finding(name, Verdict.ABSENT, "none is known", error.remedy)
    except ConfigurationError as error:
        return Finding(name, Verdict.MISSING, error.message, error.remedy)
    try:
        answer = session.call("GET", "/api/v1/status", timeout_s=_GATEWAY_LIMIT_S)
    except StandbyError as error:
        return Finding(name, Verdict.ABSENT, error.message, error.remedy)
    return Finding(name, Verdict.OK, f"{connection.url}, version {answer['version']}")


def check_engines(session: Options) -> list[Finding]:
    """Which engines does each node run, and what is in the way of the others? Nodes say it; only administrators may ask."""
    try:
        nodes = session.call("GET", "/api/v1/nodes", timeout_s=_GATEWAY_LIMIT_S)["nodes"]
    except StandbyError as error:
        return [Finding("engines of the nodes", Verdict.ABSENT, error.message, error.remedy or "use an administrator's key")]
    return [finding for node in nodes for finding in engines_of(node)]


def engines_of(node: Mapping[str, Any]) -> list[Finding]:
    """Return the findings of one node, as the API shows it. An engine that is not there is never needed: another may serve."""
    able = [
        Finding(
            _engine(node, kind),
            Verdict.OK,
            f"{node['engine_versions'].get(kind) or 'unknown version'}, computes on {node['engine_devices'].get(kind, 'cpu')}",
        )
        for kind in node["engines"]
    ]
    absent = [
        Finding(_engine(node, kind), Verdict.ABSENT, absence["reason"], absence["remedy"])
        for kind, absence in node["absent_engines"].items()
    ]
    return [*able, *absent]


def _engine(node: Mapping[str, Any], kind: str) -> str:
    return f"{kind} on {node['name']}"


def _existing(folder: Path) -> Path:
    return next((place for place in (folder, *folder.absolute().parents) if place.is_dir()), Path("/"))


def _is_fine(finding: Finding) -> bool:
    return finding.verdict is not Verdict.MISSING


def _plain(finding: Finding) -> dict[str, str]:
    return {"name": finding.name, "verdict": finding.verdict.value, "detail": finding.detail, "remedy": finding.remedy}
