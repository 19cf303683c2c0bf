"""Tars made to order: of files, and of entries that no honest archive holds."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterable, Mapping


def entry(name: str, content: bytes = b"", *, kind: bytes = tarfile.REGTYPE, link: str = "") -> tuple[tarfile.TarInfo, bytes]:
    """One entry of any kind."""
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, len(content), link
    return info, content


def tar(files: Mapping[str, bytes] | Iterable[tuple[tarfile.TarInfo, bytes]], *, form: int = tarfile.PAX_FORMAT) -> bytes:
    """A plain tar of these files or entries, in order."""
    entries = [entry(name, content) for name, content in files.items()] if isinstance(files, Mapping) else files
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for info, content in entries:
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def tar_gz(files: Mapping[str, bytes] | Iterable[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    """The same, packed."""
    return gzip.compress(tar(files), compresslevel=1)


def wrapped(folder: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files one folder deeper."""
    return {f"{folder}/{path}": content for path, content in files.items()}
