"""Modules of standby run inside an interpreter that knows nothing of it."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import standby
from standby.runtime import bootstrap, foreign

# Not the one of a virtual environment: it has neither standby nor what standby needs.
FOREIGN = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
PRINT_PATH = "import json, sys; print(json.dumps([sys.path, sys.argv[1:], __name__]))"
INSIDE_ENGINE = (
    "runtime/isolation_entry.py",
    "host/guard.py",
    "runtime/bootstrap.py",
    "runtime/engines/child_protocol.py",
    "runtime/zygote/",
)


def run(command: list[str], cwd: Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=cwd, timeout=120, env={}).stdout


def test_a_module_of_ours_runs_where_standby_is_not_installed(tmp_path: Path) -> None:
    assert "standby" not in run(
        [str(FOREIGN), "-c", "import pkgutil; print([m.name for m in pkgutil.iter_modules()])"], tmp_path
    )
    module = "standby.runtime.engines.child_protocol"
    assert run(foreign.foreign_command(FOREIGN, module), tmp_path) == ""


def test_the_module_is_the_main_program_and_has_its_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A spawned child of it finds it again by its name: its module has one."""
    (tmp_path / "standby").mkdir()
    (tmp_path / "standby" / "shown.py").write_text(PRINT_PATH + "; print(__spec__.name)")
    monkeypatch.setattr(standby, "__path__", [str(tmp_path / "standby"), *standby.__path__])
    said, name = run(foreign.foreign_command(FOREIGN, "standby.shown", ["a b", "--c"]), tmp_path).splitlines()
    path, arguments, main = json.loads(said)
    assert (arguments, main, name) == (["a b", "--c"], "__main__", "standby.shown")
    assert path[-len(foreign.roots()) :] == list(foreign.roots())
    assert str(Path(bootstrap.__file__).parent) not in path  # its neighbour ``process`` would hide somebody's


@pytest.mark.parametrize("layout", ["installed", "checkout"])
def test_the_engines_package_wins_over_ours_of_the_same_name(tmp_path: Path, layout: str) -> None:
    """Installed, the root is our whole site-packages: what lies there must not replace what the engine came with."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for root, word in ((theirs, "engine"), (ours, "standby")):
        root.mkdir()
        (root / "shared_name.py").write_text(f"WORD = {word!r}")
    parts = [ours / "standby"] if layout == "installed" else [ours / "standby", tmp_path / "more" / "standby"]
    for part in parts:
        part.mkdir(parents=True)
    (parts[-1] / "probe.py").write_text("import shared_name; print(shared_name.WORD)")
    roots = os.pathsep.join(str(part.parent) for part in parts)
    command = [str(FOREIGN), bootstrap.__file__, roots, "standby.probe"]
    said = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=120, env={"PYTHONPATH": str(theirs)}
    ).stdout
    assert said == "engine\n"


def inside_engine() -> list[Path]:
    files = [Path(part) / name for part in standby.__path__ for name in INSIDE_ENGINE]
    found = [one for file in files if file.exists() for one in (sorted(file.glob("*.py")) if file.is_dir() else [file])]
    return [file for file in found if file.name not in ("host.py", "leash.py")]


@pytest.mark.parametrize("file", inside_engine(), ids=lambda file: file.name)
def test_what_runs_inside_an_engine_needs_only_the_standard_library(file: Path) -> None:
    """And is Python 3.10: the engine's interpreter may be older than ours."""
    tree = ast.parse(file.read_text(), feature_version=(3, 10))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    foreigners = {name for name in imported if name.split(".")[0] not in sys.stdlib_module_names}
    allowed = {
        "standby.host",
        "standby.runtime.engines.child_protocol",
        "standby.runtime.isolation_entry",
        "standby.runtime.zygote",
    }
    assert {name for name in foreigners if not name.startswith("standby.runtime.zygote.")} <= allowed
