"""An engine cache as one signed file: packed on the node that compiled it, unpacked on any other. Blocking.

The file: a magic line, the HMAC-SHA256 of everything behind it, and a plain tar whose first member is the manifest. What
lies in a cache is executed, so nothing of a file is looked at before its signature is found to be the deployment's own.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import os
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from pydantic import Field, ValidationError

from standby.artifacts import volume
from standby.artifacts.archive_rules import ArchiveLimits, MemberKind, Rejected, Roster, accept
from standby.artifacts.streams import PlainStream
from standby.artifacts.tar import Body, members
from standby.domain.errors import StandbyError, UnsupportedArtifact
from standby.domain.values import Value

MAGIC: Final = b"standby engine cache 1\n"
MAC_BYTES: Final = 32
HEAD_BYTES: Final = len(MAGIC) + MAC_BYTES
_MANIFEST: Final = "manifest.json"
_FILES: Final = "files/"
_MANIFEST_BYTES: Final = 64 << 20
_BLOCK: Final = 1 << 20
_DEPTH: Final = 24
"""Folders below each other: compilers nest theirs by hash."""
_MEMBERS: Final = 200_000
_KEY_LABEL: Final = b"standby engine cache\0"


class CacheFile(Value):
    """One file of a cache."""

    path: str
    size: int = Field(ge=0, description="bytes")
    sha256: str


class CacheManifest(Value):
    """What a cache holds: files in the order of their paths. The same content makes the same manifest."""

    fingerprint: str
    standby: str = Field(default="", description="version that packed it")
    files: tuple[CacheFile, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


class RefusedCache(StandbyError):
    """A packed cache that may not be used here. ``identity``: which one, so that it is not fetched again."""

    code = "engine_cache_refused"

    def __init__(self, message: str, identity: str = "") -> None:
        super().__init__(message)
        self.identity = identity


class ChangedMeanwhile(StandbyError):
    """An engine wrote into the cache while it was packed."""

    code = "engine_cache_changed"


class Stopped(Exception):
    """The caller does not wait any more."""


def signing_key(secret: bytes) -> bytes:
    """Return the key that signs caches, made from the deployment's ``secret``, which serves other purposes too."""
    return hmac.digest(secret, _KEY_LABEL, "sha256")


def limits_for(cap_bytes: int) -> ArchiveLimits:
    """Return the rules for unpacking a cache of at most ``cap_bytes``."""
    return ArchiveLimits(unpacked_bytes=cap_bytes + _MANIFEST_BYTES, members=_MEMBERS, path_depth=_DEPTH)


def survey(files: Path, fingerprint: str, version: str) -> tuple[CacheManifest, dict[str, int]]:
    """Return what lies below the folder ``files`` now, and each file's time in nanoseconds as it was before it was read.

    Links and names that no archive may hold are left out. Raises ChangedMeanwhile when files vanish while they are read.
    """
    found, times = [], {}
    try:
        for path, name in _walk(files):
            state = path.stat()
            times[name] = state.st_mtime_ns
            found.append(CacheFile(path=name, size=state.st_size, sha256=_sha256(path)))
    except FileNotFoundError as error:
        raise ChangedMeanwhile(f"{error.filename} vanished while the engine cache was read") from None
    found.sort(key=lambda file: file.path)
    return CacheManifest(fingerprint=fingerprint, standby=version, files=tuple(found)), times


def pack(files: Path, manifest: CacheManifest, into: Path, key: bytes, stop: threading.Event) -> str:
    """Write the signed file ``into``; return its identity. The same content makes the same bytes.

    Raises ChangedMeanwhile when a file is not what ``manifest`` says, Stopped, OSError.
    """
    with into.open("xb") as packed:
        packed.write(MAGIC + bytes(MAC_BYTES))
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
            content = manifest.model_dump_json().encode()
            tar.addfile(_member(_MANIFEST, len(content)), io.BytesIO(content))
            for file in manifest.files:
                if stop.is_set():
                    raise Stopped
                _add(tar, files / file.path, file)
    with into.open("r+b") as packed:
        head = MAGIC + _signature(packed, key, stop)
        packed.seek(0)
        packed.write(head)
    return identity_of(head)


def identity_of(head: bytes) -> str:
    """Return the name of the packed cache that begins with ``head`` (HEAD_BYTES, less of what is none): by its signature."""
    return hashlib.sha256(head).hexdigest()


def unpack(packed: Path, into: Path, fingerprint: str, key: bytes, cap_bytes: int, stop: threading.Event) -> CacheManifest:
    """Unpack into the new folder ``into`` and return the manifest; exactly its files come out, each with its bytes.

    Raises RefusedCache: not signed with ``key``, of another fingerprint, larger than ``cap_bytes``, broken. Then, and
    when it was stopped, ``into`` is of no use and the caller's to remove. Raises Stopped, OSError.
    """
    with packed.open("rb", buffering=0) as file:
        size, head = os.fstat(file.fileno()).st_size, file.read(HEAD_BYTES)
        try:
            _require_signature(file, head, key, stop)
            stream = PlainStream(lambda at, length: os.pread(file.fileno(), length, HEAD_BYTES + at), size - HEAD_BYTES)
            return _take_all(stream, into, fingerprint, cap_bytes, stop)
        except (UnsupportedArtifact, ValidationError) as error:
            raise RefusedCache(f"it is broken: {str(error).partition(chr(10))[0]}", identity_of(head)) from None
        except RefusedCache as error:
            raise RefusedCache(error.message, identity_of(head)) from None


def _require_signature(file: IO[bytes], head: bytes, key: bytes, stop: threading.Event) -> None:
    if len(head) < HEAD_BYTES or not head.startswith(MAGIC):
        raise RefusedCache("it is no packed engine cache")
    if not hmac.compare_digest(_signature(file, key, stop), head[len(MAGIC) :]):
        raise RefusedCache("its signature is not of this deployment's key, or it was changed")


def _signature(packed: IO[bytes], key: bytes, stop: threading.Event) -> bytes:
    mac = hmac.new(key, digestmod="sha256")
    packed.seek(HEAD_BYTES)
    while block := packed.read(_BLOCK):
        if stop.is_set():
            raise Stopped
        mac.update(block)
    return mac.digest()


def _take_all(stream: PlainStream, into: Path, fingerprint: str, cap_bytes: int, stop: threading.Event) -> CacheManifest:
    limits = limits_for(cap_bytes)
    roster, came = Roster(limits), 0
    wanted: dict[str, CacheFile] = {}
    manifest: CacheManifest | None = None
    into.mkdir(mode=0o700)
    for entry, body in members(stream, limits):
        path = roster.admit(entry.name, entry.kind, entry.size)
        if isinstance(path, Rejected):
            raise RefusedCache(f"its member {entry.name[:200]!r} {path.reason}")
        if manifest is None:
            manifest = _manifest(path, body, fingerprint, cap_bytes)
            wanted = {f"{_FILES}{file.path}": file for file in manifest.files}
            continue
        expected = wanted.get(path or "")
        if expected is None or expected.size != entry.size:
            raise RefusedCache(f"its member {entry.name[:200]!r} is not in its manifest")
        _write(into / expected.path, body, expected.sha256, stop)
        came += 1
    if manifest is None or came != len(wanted):
        raise RefusedCache(f"{len(wanted) - came} files of its manifest are missing")
    return manifest


def _manifest(path: str | None, body: Body, fingerprint: str, cap_bytes: int) -> CacheManifest:
    if path != _MANIFEST or body.left > _MANIFEST_BYTES:
        raise RefusedCache(f"its first member is {path!r}, of {body.left} bytes, and no manifest")
    manifest = CacheManifest.model_validate_json(body.take(body.left))
    if manifest.fingerprint != fingerprint:
        raise RefusedCache(f"it is of fingerprint {manifest.fingerprint[:12]}, and {fingerprint[:12]} was asked for")
    if manifest.total_bytes > cap_bytes:
        raise RefusedCache(f"it holds {manifest.total_bytes} bytes, more than the cap of {cap_bytes}")
    return manifest


def _write(target: Path, body: Body, sha256: str, stop: threading.Event) -> None:
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    hasher = hashlib.sha256()
    with target.open("xb") as file:
        while body.left:
            if stop.is_set():
                raise Stopped
            block = body.take(_BLOCK)
            hasher.update(block)
            file.write(block)
    if hasher.hexdigest() != sha256:
        raise RefusedCache(f"its member {target.name!r} has other bytes than its manifest says")


def _add(tar: tarfile.TarFile, path: Path, file: CacheFile) -> None:
    hasher = hashlib.sha256()
    try:
        with path.open("rb") as content:
            if os.fstat(content.fileno()).st_size != file.size:
                raise ChangedMeanwhile(f"{path} was written while the engine cache was packed")
            tar.addfile(_member(f"{_FILES}{file.path}", file.size), _Hashing(content, hasher))
    except OSError as error:
        # Also tarfile's own "unexpected end of data": the file shrank.
        if isinstance(error, FileNotFoundError) or error.errno is None:
            raise ChangedMeanwhile(f"{path} changed while the engine cache was packed") from None
        raise
    if hasher.hexdigest() != file.sha256:
        raise ChangedMeanwhile(f"{path} was written while the engine cache was packed")


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o600
    return member


class _Hashing(io.RawIOBase):
    """A file that is hashed as it is read."""

    def __init__(self, file: IO[bytes], hasher: volume.Hasher) -> None:
        self._file = file
        self._hasher = hasher

    def read(self, length: int = -1) -> bytes:
        content = self._file.read(length)
        self._hasher.update(content)
        return content


def _walk(files: Path) -> Iterator[tuple[Path, str]]:
    """Yield the regular files that an archive may hold, and their names in it."""
    limits = limits_for(1 << 62)
    for folder, _, names in os.walk(files):
        for name in names:
            path = Path(folder, name)
            relative = path.relative_to(files).as_posix()
            if (
                not path.is_symlink()
                and path.is_file()
                and accept(f"{_FILES}{relative}", MemberKind.FILE, 0, limits) == (f"{_FILES}{relative}")
            ):
                yield path, relative


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
