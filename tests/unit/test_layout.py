"""The layout of the repository: what would break imports, and what the documents promise."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPONENTS = ("platform", "controller", "runtime", "warm_pool")
DOCUMENTS = (
    "ARCHITECTURE.md",
    "README.md",
    "CONTRIBUTING.md",
    *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
)
TOP_LEVEL = {*COMPONENTS, "tests", "infra", "docs"}


def test_namespace_folders_hold_no_init() -> None:
    """An __init__.py there would hide the other three components, or the standard library's platform module."""
    strays = [
        path
        for component in COMPONENTS
        for path in (ROOT / component / "__init__.py", ROOT / component / "standby" / "__init__.py")
        if path.exists()
    ]
    assert strays == []


def test_no_package_is_named_platform() -> None:
    named = [
        path
        for component in (*COMPONENTS, "tests")
        for path in (ROOT / component).rglob("platform")
        if path.is_dir() and (path / "__init__.py").exists()
    ]
    assert named == []


def test_every_package_has_an_init() -> None:
    """A forgotten __init__.py makes a package that installs but that linters do not see."""
    missing = [
        folder
        for component in COMPONENTS
        for folder in (ROOT / component / "standby").rglob("*")
        if folder.is_dir() and any(folder.glob("*.py")) and not (folder / "__init__.py").exists()
    ]
    assert missing == []


def test_standard_platform_module_is_importable_from_the_root() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import platform, sys; sys.exit(0 if platform.system() else 1)"], cwd=ROOT, check=False
    )
    assert done.returncode == 0


def test_top_level_is_the_fixed_one() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
    assert folders <= TOP_LEVEL


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_named_in_documents_exist(document: str) -> None:
    text = (ROOT / document).read_text()
    named = set(re.findall(r"`((?:platform|controller|runtime|warm_pool|tests|infra|docs|\.ci)/[\w./-]+)`", text))
    if document == "ARCHITECTURE.md":
        assert len(named) >= 20
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_between_documents_lead_somewhere(document: str) -> None:
    path = ROOT / document
    linked = re.findall(r"\]\(([^)#:]+)\)", path.read_text())
    assert [target for target in linked if not (path.parent / target).exists()] == []


def test_files_stay_readable() -> None:
    """Past 400 lines a file is split by meaning."""
    long = {
        str(path.relative_to(ROOT)): count
        for component in (*COMPONENTS, "tests")
        for path in (ROOT / component).rglob("*.py")
        if (count := len(path.read_text().splitlines())) > 450
    }
    assert long == {}
