"""File systems of their own for tests; they need root, and the test skips where there is none."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_file_system(folder: Path, size: str) -> Iterator[Path]:
    """Mount a tmpfs of ``size`` (as mount takes it) at the new ``folder``."""
    folder.mkdir()
    with _mounted(folder, "-t", "tmpfs", "-o", f"size={size}", "tmpfs"):
        yield folder


@contextlib.contextmanager
def reflinking_file_system(folder: Path) -> Iterator[Path]:
    """Mount a small XFS, which can share extents between files, at the new ``folder``."""
    mkfs = shutil.which("mkfs.xfs") or pytest.skip("needs mkfs.xfs")
    folder.mkdir()
    image = folder.with_suffix(".image")
    with image.open("wb") as file:
        file.truncate(320 << 20)
    subprocess.run([mkfs, "-q", "-m", "reflink=1", image], check=True)
    with _mounted(folder, "-o", "loop", str(image)):
        yield folder


@contextlib.contextmanager
def _mounted(folder: Path, *what: str) -> Iterator[None]:
    mounted = subprocess.run(["mount", *what, folder], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"needs the right to mount: {mounted.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)
