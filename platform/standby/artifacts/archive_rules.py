"""What may lie in an archive and under which name it comes out: pure rules for registration and for unpacking.

Both sides apply the same rules in the same order, so that a node never meets a member that registration did not judge.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from standby.artifacts.location import is_clean
from standby.domain.errors import UnsupportedArtifact

NAME_BYTES: Final = 255
"""Longest single file name that Linux file systems take, in bytes."""

_CODE_FOLDER: Final = "code"
# What macOS and tar write beside the files without being asked.
_JUNK_FOLDERS: Final = frozenset({"__MACOSX", ".git", ".ipynb_checkpoints"})
_JUNK_FILES: Final = frozenset({".DS_Store"})


class BrokenArchive(UnsupportedArtifact):
    """The archive as a whole is no good: no member of it may be used."""


class MemberKind(StrEnum):
    """What an entry of a tar is."""

    FILE = "a file"
    FOLDER = "a folder"
    SYMLINK = "a symbolic link"
    HARDLINK = "a hard link"
    DEVICE = "a device"
    FIFO = "a FIFO"
    OTHER = "an entry of an unknown kind"


@dataclass(frozen=True)
class ArchiveLimits:
    """How much an archive may hold. Whatever passes a limit is refused before it is written or kept in memory."""

    unpacked_bytes: int = 2 << 40
    members: int = 10_000
    """Entries of every kind, folders and what is left out included."""
    ratio: int = 200
    """Unpacked bytes for each packed byte."""
    ratio_from_bytes: int = 16 << 20
    """The ratio counts from here on: the padding of a small tar alone compresses further than any weights."""
    header_bytes: int = 1 << 20
    """One extended header of the tar, which holds a long name."""
    path_bytes: int = 1024
    path_depth: int = 16


@dataclass(frozen=True)
class Rejected:
    """The archive as a whole is refused for this reason, in words that follow the member's name."""

    reason: str


def accept(name: str, kind: MemberKind, size: int, limits: ArchiveLimits = ArchiveLimits()) -> str | Rejected:
    """Return the path below the archive's root that ``name`` stands for; ``""`` is the root folder itself.

    A leading ``./`` and the trailing slash of a folder are dropped; nothing else is mended. ``size`` in bytes.
    """
    if kind not in {MemberKind.FILE, MemberKind.FOLDER}:
        return Rejected(f"is {kind}: an archive may hold files and folders only")
    path = _trimmed(name, kind)
    if kind is MemberKind.FOLDER and path in {"", "."} and not name.startswith("/"):
        return ""
    reason = _fault_of(path, limits)
    if reason is not None:
        return Rejected(reason)
    if size > limits.unpacked_bytes:
        return Rejected(f"has {size} bytes, more than the limit of {limits.unpacked_bytes}")
    return path


def wrapper_of(paths: Iterable[str]) -> str:
    """Return the single folder around every file of ``paths``, or ``""``; what is left out does not count."""
    kept = [path for path in paths if is_left_out(path) is None]
    firsts = {path.partition("/")[0] for path in kept}
    return firsts.pop() if len(firsts) == 1 and all("/" in path for path in kept) else ""


def is_left_out(path: str) -> str | None:
    """Return why the file ``path`` (wrapper already taken off) is never unpacked, in words, or None when it may be."""
    first, _, rest = path.partition("/")
    name = path.rpartition("/")[2]
    if first == _CODE_FOLDER and rest:
        return "the folder code/: nothing from a model is executed"
    if first in _JUNK_FOLDERS and rest:
        return f"the folder {first}/: no part of a model"
    if name in _JUNK_FILES or name.startswith("._"):
        return "files that an operating system wrote beside the model"
    return None


def unwrapped(path: str, wrapper: str) -> str:
    """Return ``path`` without the wrapper; a file beside the wrapper (only what is left out can be) stays as it is."""
    return path.removeprefix(f"{wrapper}/") if wrapper else path


@dataclass
class Roster:
    """The members of one archive in the order they come; says no at the first that breaks a rule."""

    limits: ArchiveLimits = ArchiveLimits()
    entries: int = 0
    unpacked_bytes: int = 0
    files: dict[str, int] = field(default_factory=dict)
    """Path → bytes, wrapper still on."""
    folders: set[str] = field(default_factory=set)

    def admit(self, name: str, kind: MemberKind, size: int) -> str | Rejected | None:
        """Return the path of a file, None for a folder, or why the archive is refused."""
        self.entries += 1
        if self.entries > self.limits.members:
            return Rejected(f"is number {self.entries}: the archive has more than {self.limits.members} members")
        path = accept(name, kind, size, self.limits)
        if isinstance(path, Rejected):
            return path
        reason = self._clash(path, kind)
        if reason is not None:
            return Rejected(reason)
        self.folders.update(_parents(path))
        if kind is MemberKind.FOLDER:
            self.folders.add(path)
            return None
        self.files[path] = size
        self.unpacked_bytes += size
        if self.unpacked_bytes > self.limits.unpacked_bytes:
            return Rejected(f"brings the unpacked size past the limit of {self.limits.unpacked_bytes} bytes")
        return path

    def _clash(self, path: str, kind: MemberKind) -> str | None:
        if any(parent in self.files for parent in _parents(path)):
            return "lies in a folder that is also a file"
        if kind is MemberKind.FOLDER:
            return "is a folder and a file" if path in self.files else None
        return "is there twice" if path in self.files or path in self.folders else None


def too_dense(packed_bytes: int, unpacked_bytes: int, limits: ArchiveLimits) -> str | None:
    """Return why a stream that has turned ``packed_bytes`` into ``unpacked_bytes`` so far is refused, or None."""
    if unpacked_bytes <= max(limits.ratio_from_bytes, packed_bytes * limits.ratio):
        return None
    return f"{packed_bytes} packed bytes became {unpacked_bytes}, more than {limits.ratio} for one: a compression bomb"


def _trimmed(name: str, kind: MemberKind) -> str:
    path = name.removeprefix("./")
    return path.removesuffix("/") if kind is MemberKind.FOLDER and path != "/" else path


def _parents(path: str) -> list[str]:
    return [path[:place] for place, letter in enumerate(path) if letter == "/"]


def _fault_of(path: str, limits: ArchiveLimits) -> str | None:
    if path.startswith("/"):
        return "is an absolute path"
    if ".." in path.split("/"):
        return "holds '..' and could leave the model's folder"
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return "has a name that is not UTF-8"
    if not is_clean(path) or "\\" in path:
        return "is no legal file name: empty or '.' parts, a backslash or a control character"
    return _too_long(encoded, limits)


def _too_long(path: bytes, limits: ArchiveLimits) -> str | None:
    parts = path.split(b"/")
    if len(path) > limits.path_bytes:
        return f"has a name of {len(path)} bytes, more than {limits.path_bytes}"
    if len(parts) > limits.path_depth:
        return f"lies {len(parts)} folders deep, more than {limits.path_depth}"
    if any(len(part) > NAME_BYTES for part in parts):
        return f"has a part longer than {NAME_BYTES} bytes"
    return None
