"""How many tokens a prompt has, counted with the model's own tokenizer.

The tokenizer comes from where the model's bytes come from, as soon as an endpoint of several engines is asked, in a thread:
until it is there, and where there is none, nothing is counted and whoever asks estimates. What counts is the text alone:
neither the token by which some models begin every text, nor the words of a chat template.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

from tokenizers import Tokenizer

from standby.artifacts.bpe import gguf_tokenizer
from standby.artifacts.contents import patiently
from standby.artifacts.credentials import Credentials
from standby.artifacts.sources import open_source
from standby.artifacts.stored_keys import not_stored, unseal_keys
from standby.artifacts.tokenizer_json import json_tokenizer
from standby.bus.tables import Table
from standby.domain.access import StoredCredential
from standby.domain.ask import Ask
from standby.domain.errors import StandbyError
from standby.domain.model import Manifest, Model, ModelFormat, ObjectRef
from standby.domain.names import key
from standby.gateway.hybrid import TokenCount
from standby.gateway.route import TokenCounter
from standby.host import tasks
from standby.host.sealing import SealingKey

_log = logging.getLogger(__name__)

MAX_TOKENIZER_BYTES: Final = 64 << 20
"""A larger tokenizer.json is not read."""
KEPT_BYTES: Final = 128 << 20
"""Tokenizers that are kept, by the size of what they were made from; in memory each takes a few times as much."""
KEPT_COUNTS: Final = 4096
LONGEST: Final = 32 << 10
"""Characters that are counted, about 6 ms of processor time; what a longer prompt has more is estimated from them."""
RETRY_S: Final = 300.0
"""A tokenizer that could not be read is asked for again after so long."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a model's tokenizer lies: the whole of ``ref``, or the header of a GGUF."""

    tenant: str
    manifest: Manifest
    ref: ObjectRef


@dataclass(slots=True)
class _Kept:
    """A tokenizer, or None where there is none to be had, until ``retry_at``."""

    tokenizer: Tokenizer | None
    size: int
    retry_at: float | None = None


@dataclass
class PromptTokens:
    """``credentials`` and ``sealing`` open the keys that a tenant has stored; ``monotonic`` is a clock in seconds."""

    credentials: Table[StoredCredential]
    sealing: SealingKey | None
    monotonic: Callable[[], float]
    _kept: OrderedDict[str, _Kept] = field(default_factory=OrderedDict)
    _counts: OrderedDict[tuple[str, int, int], TokenCount] = field(default_factory=OrderedDict)
    # By the request: one that waits is looked at often, and each time its text would have to be read out of its body.
    _asked: WeakKeyDictionary[Callable[[], str], tuple[str, TokenCount]] = field(default_factory=WeakKeyDictionary)
    _loading: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    def counter(self, model: Model) -> TokenCounter | None:
        """Return what counts prompts for ``model``; None where none of its weights has a tokenizer that could be read.

        Begins to read it, so that it is there when the first prompt must be counted. Needs a running loop.
        """
        place = place_of(model)
        if place is None:
            return None
        self._tokenizer(place.manifest.digest, place)
        return partial(self._count, place)

    async def stop(self) -> None:
        """End what is being read."""
        await tasks.end(self._loading.values())

    def _count(self, place: _Place, ask: Ask) -> TokenCount | None:
        digest = place.manifest.digest
        known = self._asked.get(ask.prompt)
        if known is not None and known[0] == digest:
            return known[1]
        tokenizer = self._tokenizer(digest, place)
        if tokenizer is None:
            return None
        text = ask.prompt()
        named = (digest, hash(text), len(text))
        found = self._counts.get(named)
        if found is None:
            found = _try_count(tokenizer, text)
            if found is None:
                _unusable(place.manifest)
                self._kept[digest] = _Kept(None, 0)
                return None
            self._counts[named] = found
            if len(self._counts) > KEPT_COUNTS:
                self._counts.popitem(last=False)
        self._asked[ask.prompt] = (digest, found)
        return found

    def _tokenizer(self, digest: str, place: _Place) -> Tokenizer | None:
        kept = self._kept.get(digest)
        if kept is not None and (kept.retry_at is None or kept.retry_at > self.monotonic()):
            self._kept.move_to_end(digest)
            return kept.tokenizer
        if digest not in self._loading:
            task = asyncio.get_running_loop().create_task(self._load(digest, place))
            self._loading[digest] = task
            task.add_done_callback(lambda _task: self._loading.pop(digest, None))
        return None

    async def _load(self, digest: str, place: _Place) -> None:
        found = _Kept(None, 0)
        try:
            keys = await self._keys(place)
            tokenizer = await asyncio.to_thread(read_tokenizer, place.manifest, place.ref, keys)
            found = _Kept(tokenizer, 0 if tokenizer is None else place.ref.size)
        except StandbyError as error:
            found.retry_at = self.monotonic() + RETRY_S
            _log.warning(
                "prompts are not counted but estimated: %s", error.message, extra={"source": place.manifest.source_uri}
            )
        if place.manifest.format is ModelFormat.GGUF:
            found.size = min(found.size, MAX_TOKENIZER_BYTES // 8)  # only its header was read
        self._kept[digest] = found
        while len(self._kept) > 1 and sum(kept.size for kept in self._kept.values()) > KEPT_BYTES:
            self._kept.popitem(last=False)

    async def _keys(self, place: _Place) -> Credentials | None:
        name = place.manifest.source.credentials
        if name is None:
            return None
        entry = await self.credentials.get(key(place.tenant, name))
        if entry is None:
            raise not_stored(name)
        return unseal_keys(entry.value, place.tenant, name, self.sealing)


def place_of(model: Model) -> _Place | None:
    """Return where the tokenizer lies: a ``tokenizer.json`` beside any of the model's weights, else in a GGUF's header.

    Inside an archive it is not read: that would take the whole of it.
    """
    manifests = [one for one in (model.manifest, *model.weights.values()) if one.archive is None]
    found = _first(manifests, lambda ref: ref.path == "tokenizer.json" and ref.size <= MAX_TOKENIZER_BYTES)
    found = found or _first(manifests, lambda ref: ref.path.lower().endswith(".gguf"))
    return None if found is None else _Place(model.tenant, *found)


def read_tokenizer(manifest: Manifest, ref: ObjectRef, keys: Credentials | None) -> Tokenizer | None:
    """Return the tokenizer in ``ref``; None where it is of a kind that cannot be made here. Blocking: for threads.

    Raises SourceUnreachable, ArtifactChanged and UnsupportedArtifact.
    """
    source = open_source(manifest.source_uri, manifest.source, credentials=keys)

    def read(offset: int, length: int) -> bytes:
        return patiently(source, ref, offset, length)

    if ref.path.lower().endswith(".gguf"):
        make = partial(gguf_tokenizer, read, ref.size)
    else:
        make = partial(json_tokenizer, read(0, ref.size))
    try:
        found = make()
    except (StandbyError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 # bare Exceptions, and panics, which are not even those, whatever is wrong with the file
        found = None
    if found is None:
        _unusable(manifest)
    return found


def count(tokenizer: Tokenizer, text: str) -> TokenCount:
    """Return the tokens of ``text``, without special ones around it; of a long one, as its beginning has them."""
    encoded = tokenizer.encode(text[:LONGEST], add_special_tokens=False)
    counted = len(encoded.ids)
    if len(text) <= LONGEST:
        return TokenCount(counted, estimated=False)
    return TokenCount(round(counted * len(text) / LONGEST), estimated=True)


def _try_count(tokenizer: Tokenizer, text: str) -> TokenCount | None:
    """Return the tokens; None where the tokenizer fails at the text, as one that has no token for what it does not know."""
    try:
        return count(tokenizer, text)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 # as above
        return None


def _unusable(manifest: Manifest) -> None:
    _log.warning("a tokenizer cannot be used: prompts are estimated", extra={"source": manifest.source_uri})


def _first(manifests: Iterable[Manifest], suits: Callable[[ObjectRef], bool]) -> tuple[Manifest, ObjectRef] | None:
    return next(((one, ref) for one in manifests for ref in _in_order(one.objects) if suits(ref)), None)


def _in_order(refs: Sequence[ObjectRef]) -> Sequence[ObjectRef]:
    """Return the objects by path: of a model in several files the first one has the header."""
    return sorted(refs, key=lambda ref: ref.path)
