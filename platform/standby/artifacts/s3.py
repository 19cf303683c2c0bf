"""Objects in S3, or in anything that speaks its protocol, through obstore."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import obstore
from obstore.exceptions import BaseError, InvalidPathError, PermissionDeniedError, PreconditionError, UnauthenticatedError
from obstore.store import S3Store

from standby.artifacts.location import S3Location, SourceInterrupted, checked_path
from standby.domain.errors import ArtifactChanged, ArtifactError, InvalidInput, SourceUnreachable, UnsupportedArtifact
from standby.domain.model import ObjectRef, SourceOptions

if TYPE_CHECKING:
    from obstore import Bytes, GetOptions, ObjectMeta
    from obstore.store import ClientConfig, RetryConfig, S3Config, S3Credential

DEFAULT_REGION: Final = "us-east-1"
MAX_OBJECTS: Final = 10_000
_PERMANENT: Final = frozenset({400, 401, 403, 404, 405})
_ENDPOINT: Final = re.compile(r"https?://[A-Za-z0-9.\-_\[\]:]+(/\S*)?")
_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w{1,60})</Code>")
# In the order in which they tell more: a refused connection is also an "error sending request".
_CAUSES: Final = (
    ("refused", "connection refused"),
    ("lookup address", "the host name is not known"),
    ("dns error", "the host name is not known"),
    ("certificate", "the TLS certificate is not trusted"),
    ("imed out", "no answer in time"),
    ("timedout", "no answer in time"),
    ("TimedOut", "no answer in time"),
    ("reset", "connection reset"),
    ("decoding response body", "connection cut"),
    ("IncompleteMessage", "connection cut"),
)
_CREDENTIAL_SOURCES: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


def endpoint_of(options: SourceOptions, environment: Mapping[str, str]) -> str | None:
    """Return the store's address: of the options, else of the environment, else None (Amazon's own)."""
    candidates = (options.endpoint_url, environment.get("AWS_ENDPOINT_URL_S3"), environment.get("AWS_ENDPOINT_URL"))
    return next((address.rstrip("/") for address in candidates if address), None)


def open_store(bucket: str, options: SourceOptions, *, environment: Mapping[str, str] | None = None) -> S3Store:
    """Return an obstore client of ``bucket`` with bounded timeouts and retries; nothing is sent yet.

    Raises InvalidInput when the address is illegal, SourceUnreachable when no credentials are to be had.
    """
    env = os.environ if environment is None else environment
    endpoint = endpoint_of(options, env)
    if endpoint is not None and not _ENDPOINT.fullmatch(endpoint):
        raise InvalidInput(
            f"endpoint URL {endpoint[:200]!r} is not an http or https address", remedy="write e.g. http://127.0.0.1:9000"
        )
    _require_credentials(bucket, options, endpoint, env)
    client: ClientConfig = {
        "allow_http": endpoint is not None and endpoint.startswith("http://"),
        "connect_timeout": timedelta(seconds=3),
        # A stalled connection ends after this long; a slow one that moves may take the whole time below.
        "read_timeout": timedelta(seconds=15),
        "timeout": timedelta(seconds=300),
        "user_agent": "standby",
    }
    retry: RetryConfig = {
        "max_retries": 2,
        "retry_timeout": timedelta(seconds=20),
        "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=1), "base": 2},
    }
    # Both names: obstore would prefer AWS_ENDPOINT_URL_S3 of the environment to the address that was asked for.
    config: S3Config = {"endpoint": endpoint, "aws_endpoint_url_s3": endpoint} if endpoint else {}
    try:
        return S3Store(
            bucket,
            config=config,
            region=options.region or env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or DEFAULT_REGION,
            virtual_hosted_style_request=not options.path_style,
            skip_signature=options.anonymous,
            client_options=client,
            retry_config=retry,
            credential_provider=_keys_of(env) if not options.anonymous and "AWS_ACCESS_KEY_ID" in env else None,
        )
    except (BaseError, ValueError) as error:
        raise SourceUnreachable(
            f"the address of bucket {bucket!r} is not usable (endpoint {endpoint!r}): {_first_line(error)}",
            remedy="correct the endpoint URL, e.g. http://127.0.0.1:9000",
        ) from None


class S3Source:
    """The objects below one prefix, or one object. See standby.artifacts.sources.Source."""

    def __init__(self, location: S3Location, options: SourceOptions, *, environment: Mapping[str, str] | None = None) -> None:
        self._location = location
        self._endpoint = endpoint_of(options, os.environ if environment is None else environment) or "Amazon S3"
        self._store = open_store(location.bucket, options, environment=environment)

    @property
    def where(self) -> str:
        """Bucket and prefix in words."""
        return f"bucket {self._location.bucket!r}, prefix {self._location.prefix!r}"

    async def list(self) -> list[ObjectRef]:
        """Return every object below the prefix; when there is none, the object of exactly that key."""
        try:
            found = [meta async for page in obstore.list(self._store, self._location.prefix or None) for meta in page]
        except (BaseError, OSError, ValueError) as error:
            raise self._translated(error, self._location.prefix) from None
        if len(found) > MAX_OBJECTS:
            raise UnsupportedArtifact(
                f"{self.where}: {len(found)} objects, more than {MAX_OBJECTS}", remedy="register the model's own folder"
            )
        if not found and not self._location.folder:
            single = await self._head(self._location.key)
            return [] if single is None else [_ref(single, self._location.key.rpartition("/")[2])]
        refs = [_ref(meta, meta["path"].removeprefix(self._location.prefix)) for meta in found]
        return sorted(refs, key=lambda ref: ref.path)

    async def pin(self, ref: ObjectRef) -> ObjectRef | None:
        """Return ``ref`` as the store describes it when asked; None for a folder marker."""
        meta = await self._head(ref.key)
        if meta is None:
            if ref.size == 0:
                return None
            raise ArtifactChanged(f"object {ref.key!r} in {self.where} vanished during registration", remedy="try again")
        return _ref(meta, ref.path)

    async def read(self, ref: ObjectRef, start: int, length: int) -> Bytes:
        """Return the bytes; every single request carries the ETag, so that no mixture of two objects can come out."""
        begun = False
        try:
            answer = await obstore.get_async(self._store, ref.key, options=_range_of(ref, start, length))
            begun = True
            _check_same(ref, answer.meta)
            return _whole(ref, start, length, await answer.bytes_async())
        except (BaseError, OSError, ValueError) as error:
            raise self._translated(error, ref.key, pinned=True, begun=begun) from None

    def read_blocking(self, ref: ObjectRef, start: int, length: int) -> Bytes:
        """Do ``read`` without an event loop."""
        begun = False
        try:
            answer = obstore.get(self._store, ref.key, options=_range_of(ref, start, length))
            begun = True
            _check_same(ref, answer.meta)
            return _whole(ref, start, length, answer.bytes())
        except (BaseError, OSError, ValueError) as error:
            raise self._translated(error, ref.key, pinned=True, begun=begun) from None

    async def _head(self, key: str) -> ObjectMeta | None:
        try:
            return await obstore.head_async(self._store, key)
        except FileNotFoundError:
            return None
        except (BaseError, OSError, ValueError) as error:
            raise self._translated(error, key) from None

    def _translated(self, error: Exception, key: str, *, pinned: bool = False, begun: bool = False) -> ArtifactError:
        """Return our own error for one of obstore; its text, many lines with request internals, goes no further."""
        place = f"bucket {self._location.bucket!r}, key {key!r}, at {self._endpoint}"
        text = str(error)
        found = _STATUS.search(text)
        status = int(found.group(1)) if found else None
        code = _CODE.search(text)
        if isinstance(error, InvalidPathError) or (isinstance(error, (ValueError, TypeError)) and "parse path" in text):
            return UnsupportedArtifact(f"{place}: an object's key is no legal path: {_first_line(error)}", remedy="rename it")
        if pinned and (isinstance(error, (PreconditionError, FileNotFoundError)) or status in {404, 412, 416}):
            what = "is gone" if isinstance(error, FileNotFoundError) or status == 404 else "is another one now"
            return changed(key, f"it {what} ({place})")
        if isinstance(error, (PermissionDeniedError, UnauthenticatedError)):
            status = status or 403
        answer = " ".join([f"HTTP {status}", *([code.group(1)] if code else [])]) if status else _cause(text)
        if status in _PERMANENT:
            return SourceUnreachable(f"{place}: {answer}", remedy=_remedy(status, code.group(1) if code else ""))
        interrupted = SourceInterrupted(
            f"{place}: {answer}", remedy="check the endpoint URL and that the store runs; then retry"
        )
        interrupted.begun = begun
        return interrupted


def changed(key: str, what: str) -> ArtifactChanged:
    """Return the error for an object that is not the registered one."""
    return ArtifactChanged(f"artifact changed since it was registered: object {key!r}: {what}", remedy="register again")


def _ref(meta: ObjectMeta, path: str) -> ObjectRef:
    etag = meta["e_tag"] or ""
    # The time would make the same bytes, uploaded twice, another version; it stands in only where there is no ETag.
    modified_at = None if etag else meta["last_modified"].timestamp()
    return ObjectRef(
        key=meta["path"], path=checked_path(path), size=meta["size"], etag=etag,
        version_id=meta["version"], modified_at=modified_at,
    )  # fmt: skip


def _range_of(ref: ObjectRef, start: int, length: int) -> GetOptions:
    options: GetOptions = {"range": (start, start + length)}
    if ref.etag:
        options["if_match"] = ref.etag
    if ref.version_id:
        options["version"] = ref.version_id
    return options


def _whole(ref: ObjectRef, start: int, length: int, content: Bytes) -> Bytes:
    if len(content) != length:
        raise SourceInterrupted(f"object {ref.key!r}: {len(content)} of {length} bytes came from offset {start}")
    return content


def _check_same(ref: ObjectRef, meta: ObjectMeta) -> None:
    if meta["size"] != ref.size:
        raise changed(ref.key, f"it has {meta['size']} bytes instead of {ref.size}")
    if ref.etag and meta["e_tag"] != ref.etag:
        raise changed(ref.key, f"its ETag is {meta['e_tag']} instead of {ref.etag}")
    if ref.modified_at is not None and meta["last_modified"].timestamp() != ref.modified_at:
        raise changed(ref.key, "it was written after that")


def _keys_of(env: Mapping[str, str]) -> _StaticKeys:
    return _StaticKeys(env["AWS_ACCESS_KEY_ID"], env.get("AWS_SECRET_ACCESS_KEY", ""), env.get("AWS_SESSION_TOKEN") or None)


class _StaticKeys:
    """Credentials of exactly the environment that was handed in; obstore itself would mix in the process's own."""

    def __init__(self, access_key: str, secret_key: str, token: str | None) -> None:
        self._keys = (access_key, secret_key, token)

    def __call__(self) -> S3Credential:
        access_key, secret_key, token = self._keys
        return {"access_key_id": access_key, "secret_access_key": secret_key, "token": token, "expires_at": None}


def _require_credentials(bucket: str, options: SourceOptions, endpoint: str | None, env: Mapping[str, str]) -> None:
    # Elsewhere than at Amazon there is no machine role to fall back to: asking for one only times out, unexplained.
    ours_elsewhere = endpoint is not None and ".amazonaws.com" not in endpoint
    if ours_elsewhere and not options.anonymous and not any(env.get(name) for name in _CREDENTIAL_SOURCES):
        raise SourceUnreachable(
            f"no credentials for bucket {bucket!r} at {endpoint}: AWS_ACCESS_KEY_ID is not set",
            remedy="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or register the source as anonymous",
        )


def _remedy(status: int | None, code: str) -> str:
    if code == "NoSuchBucket" or status == 404:
        return "check the bucket's name and the endpoint URL"
    if status in {401, 403}:
        return "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and that they may list and read there"
    return "check the URI and the endpoint URL"


def _cause(text: str) -> str:
    return next((words for mark, words in _CAUSES if mark in text), "no answer")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]
