"""Objects in S3, or in anything that speaks its protocol, through obstore."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import httpx
import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store
from typing_extensions import Buffer

from standby.artifacts.credentials import Credentials, default_region, find_keys
from standby.artifacts.location import PIECE_BYTES, S3Location, SourceInterrupted, checked_path
from standby.artifacts.s3_answers import Place, changed, region_in, status_of, translated
from standby.domain.errors import ArtifactChanged, ArtifactError, InvalidInput, SourceUnreachable, UnsupportedArtifact
from standby.domain.model import ObjectRef, SourceOptions

if TYPE_CHECKING:
    from obstore import Bytes, GetOptions, GetResult, ObjectMeta
    from obstore.store import ClientConfig, RetryConfig, S3Config

DEFAULT_REGION: Final = "us-east-1"
MAX_OBJECTS: Final = 10_000
_ENDPOINT: Final = re.compile(r"https?://[A-Za-z0-9.\-_\[\]:]+(/\S*)?")
_REGION: Final = re.compile(r"[a-z0-9-]{1,40}")
_REGION_HEADER: Final = "x-amz-bucket-region"
_MAYBE_ELSEWHERE: Final = frozenset({301, 302, 307, 308, 400, 403})
"""Answers by which a store may say that the bucket lies in another region."""
_PROBE_LIMIT_S: Final = 5.0
_FAILURES: Final = (BaseError, OSError, ValueError)
_T = TypeVar("_T")
_Metas: TypeAlias = "list[ObjectMeta]"


def endpoint_of(options: SourceOptions, environment: Mapping[str, str]) -> str | None:
    """Return the store's address: of the options, else of the environment, else None (Amazon's own).

    Raises InvalidInput when it is no address.
    """
    candidates = (options.endpoint_url, environment.get("AWS_ENDPOINT_URL_S3"), environment.get("AWS_ENDPOINT_URL"))
    endpoint = next((address.rstrip("/") for address in candidates if address), None)
    if endpoint is not None and not _ENDPOINT.fullmatch(endpoint):
        raise InvalidInput(
            f"endpoint URL {endpoint[:200]!r} is not an http or https address", remedy="write e.g. http://127.0.0.1:9000"
        )
    return endpoint


def open_store(
    bucket: str,
    options: SourceOptions,
    *,
    environment: Mapping[str, str] | None = None,
    credentials: Credentials | None = None,
) -> S3Store:
    """Return an obstore client of ``bucket`` with bounded timeouts and jittered retries; nothing is asked of it yet.

    Blocking: finding the keys may ask a machine for its role. Raises InvalidInput when the address is illegal,
    SourceUnreachable when no credentials are to be had.
    """
    endpoint = endpoint_of(options, os.environ if environment is None else environment)
    place = f"bucket {bucket!r} at {endpoint or 'Amazon S3'}"
    at_amazon = endpoint is None or ".amazonaws.com" in endpoint
    keys = (
        None if options.anonymous else find_keys(place, credentials=credentials, environment=environment, at_amazon=at_amazon)
    )
    client: ClientConfig = {
        "allow_http": endpoint is not None and endpoint.startswith("http://"),
        "connect_timeout": timedelta(seconds=3),
        # A stalled connection ends after this long; a slow one that moves may take the whole time below.
        "read_timeout": timedelta(seconds=15),
        "timeout": timedelta(seconds=300),
        "user_agent": "standby",
    }
    # For connections that fail and for 429 and 5xx, 503 SlowDown among them; the library adds the jitter.
    retry: RetryConfig = {
        "max_retries": 4,
        "retry_timeout": timedelta(seconds=20),
        "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
    }
    # Both names: obstore would prefer AWS_ENDPOINT_URL_S3 of the environment to the address that was asked for.
    config: S3Config = {"endpoint": endpoint, "aws_endpoint_url_s3": endpoint} if endpoint else {}
    try:
        return S3Store(
            bucket,
            config=config,
            region=region_of(options, environment),
            virtual_hosted_style_request=not options.path_style,
            skip_signature=options.anonymous,
            client_options=client,
            retry_config=retry,
            credential_provider=keys,
        )
    except (BaseError, ValueError) as error:
        raise SourceUnreachable(
            f"the address of {place} is not usable: {(str(error).strip().splitlines() or [''])[0][:200]}",
            remedy="correct the endpoint URL, e.g. http://127.0.0.1:9000",
        ) from None


def region_of(options: SourceOptions, environment: Mapping[str, str] | None) -> str:
    """Return the region to ask in: of the options, else of the environment or the profile, else Amazon's first."""
    return options.region or default_region(environment) or DEFAULT_REGION


class S3Source:
    """The objects below one prefix, or one object. See standby.artifacts.sources.Source."""

    def __init__(
        self,
        location: S3Location,
        options: SourceOptions,
        *,
        environment: Mapping[str, str] | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self.options = options
        self._location = location
        self._environment = environment
        self._credentials = credentials
        self._endpoint = endpoint_of(options, os.environ if environment is None else environment)
        self._lock = threading.Lock()
        self._store: S3Store | None = None
        self._followed = False
        self._right_region: str | None = None

    @property
    def where(self) -> str:
        """Bucket and prefix in words."""
        return f"bucket {self._location.bucket!r}, prefix {self._location.prefix!r}"

    @property
    def store(self) -> S3Store:
        """The client, made at the first use. Blocking: see ``open_store``."""
        return self._open()

    def _open(self) -> S3Store:
        with self._lock:
            if self._store is None:
                self._store = open_store(
                    self._location.bucket, self.options, environment=self._environment, credentials=self._credentials
                )
            return self._store

    async def list(self) -> list[ObjectRef]:
        """Return every object below the prefix; when there is none, the object of exactly that key."""
        try:
            found = await self._ask(self._list_all, self._location.prefix)
        except SourceUnreachable:
            # Who may read one object need not be allowed to list the bucket.
            single = None if self._location.folder else await self._single(quiet=True)
            if single is None:
                raise
            return [single]
        if len(found) > MAX_OBJECTS:
            raise UnsupportedArtifact(
                f"{self.where}: {len(found)} objects, more than {MAX_OBJECTS}", remedy="register the model's own folder"
            )
        if not found and not self._location.folder:
            single = await self._single()
            return [] if single is None else [single]
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

        async def get(store: S3Store) -> Bytes:
            nonlocal begun
            answer = await obstore.get_async(store, ref.key, options=_range_of(ref, start, length))
            begun = True
            _check_same(ref, answer.meta)
            return _whole(ref, start, length, await answer.bytes_async())

        return await self._ask(get, ref.key, pinned=True, begun=lambda: begun)

    def read_blocking(self, ref: ObjectRef, start: int, length: int) -> Bytes:
        """Do ``read`` without an event loop."""
        answer = self._answer(ref, start, length)
        try:
            return _whole(ref, start, length, answer.bytes())
        except _FAILURES as error:
            raise self._translated(error, ref.key, pinned=True, begun=True) from None

    def pieces(self, ref: ObjectRef, start: int, length: int) -> Iterator[Buffer]:
        """Yield the bytes as they come: they need not be put together, which costs as much as reading them."""
        answer, got = self._answer(ref, start, length), 0
        try:
            for piece in answer.stream(min_chunk_size=PIECE_BYTES):
                got += len(piece)
                if got <= length:
                    yield piece
        except _FAILURES as error:
            raise self._translated(error, ref.key, pinned=True, begun=True) from None
        if got != length:
            raise _cut(ref, start, length, got)

    def _answer(self, ref: ObjectRef, start: int, length: int) -> GetResult:
        """Return the answer, its body still to come, from the region in which the bucket lies. Blocking."""
        while True:
            store = self.store
            try:
                answer = obstore.get(store, ref.key, options=_range_of(ref, start, length))
            except _FAILURES as error:
                if not self._moved(store, error):
                    raise self._translated(error, ref.key, pinned=True, begun=False) from None
            else:
                _check_same(ref, answer.meta)
                return answer

    async def _list_all(self, store: S3Store) -> _Metas:
        return [meta async for page in obstore.list(store, self._location.prefix or None) for meta in page]

    async def _single(self, *, quiet: bool = False) -> ObjectRef | None:
        try:
            meta = await self._head(self._location.key)
        except SourceUnreachable:
            if quiet:
                return None
            raise
        return None if meta is None else _ref(meta, self._location.key.rpartition("/")[2])

    async def _head(self, key: str) -> ObjectMeta | None:
        async def head(store: S3Store) -> ObjectMeta | None:
            try:
                return await obstore.head_async(store, key)
            except FileNotFoundError:
                return None

        return await self._ask(head, key)

    async def _ask(
        self,
        question: Callable[[S3Store], Awaitable[_T]],
        key: str,
        *,
        pinned: bool = False,
        begun: Callable[[], bool] = lambda: False,
    ) -> _T:
        """Ask the store, and once more in the right region when it lies elsewhere. Raises our own errors only."""
        while True:
            store = self._store
            if store is None:
                store = await asyncio.to_thread(self._open)
            try:
                return await question(store)
            except _FAILURES as error:
                if not await asyncio.to_thread(self._moved, store, error):
                    raise self._translated(error, key, pinned=pinned, begun=begun()) from None

    def _moved(self, store: S3Store, error: Exception) -> bool:
        """True when ``error`` came from asking in the wrong region, and ``self.store`` asks in the right one now.

        Only a region's name is taken from the answer, never an address to go to.
        """
        if status_of(error) not in _MAYBE_ELSEWHERE:
            return False
        with self._lock:
            if self._store is not store:
                return True
            self._right_region = region_in(error) or self._probe()
            wrong = self._right_region not in {None, region_of(self.options, self._environment)}
            if not wrong or self._followed:
                return False
            self._followed = True
            self.options = self.options.model_copy(update={"region": self._right_region})
            self._store = None
            return True

    def _probe(self) -> str | None:
        """Return where the store says that the bucket lies; Amazon tells it even to those who may do nothing."""
        if self._endpoint is None:
            url = f"https://s3.{DEFAULT_REGION}.amazonaws.com/{self._location.bucket}"
        else:
            url = f"{self._endpoint}/{self._location.bucket}"
        try:
            answer = httpx.head(url, timeout=_PROBE_LIMIT_S, headers={"user-agent": "standby"})
        except (httpx.HTTPError, httpx.InvalidURL):
            return None
        region = answer.headers.get(_REGION_HEADER, "")
        return region if _REGION.fullmatch(region) else None

    def _translated(self, error: Exception, key: str, *, pinned: bool, begun: bool) -> ArtifactError:
        given = "the stored keys" if self._credentials is not None else "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        place = Place(
            bucket=self._location.bucket,
            endpoint=self._endpoint or "Amazon S3",
            region=region_of(self.options, self._environment),
            keys="that the bucket is public" if self.options.anonymous else given,
        )
        return translated(error, key, place, pinned=pinned, begun=begun, right_region=self._right_region)


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
        raise _cut(ref, start, length, len(content))
    return content


def _cut(ref: ObjectRef, start: int, length: int, got: int) -> SourceInterrupted:
    return SourceInterrupted(f"object {ref.key!r}: {got} of {length} bytes came from offset {start}")


def _check_same(ref: ObjectRef, meta: ObjectMeta) -> None:
    if meta["size"] != ref.size:
        raise changed(ref.key, f"it has {meta['size']} bytes instead of {ref.size}")
    if ref.etag and meta["e_tag"] != ref.etag:
        raise changed(ref.key, f"its ETag is {meta['e_tag']} instead of {ref.etag}")
    if ref.modified_at is not None and meta["last_modified"].timestamp() != ref.modified_at:
        raise changed(ref.key, "it was written after that")
