"""Typed tables over JetStream key-value buckets: compare-and-set writes, and a listing that misses nothing.

A bucket's stream repeats every *stored* message on ``changed.<bucket>.<key>`` with its revision. A plain subscription on the
bucket's own subjects would also hear writes that the server refused, and would not learn any revision.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Generic, TypeVar

import nats.js.errors
from nats.js import api
from pydantic import ValidationError

from standby.bus import subjects
from standby.bus.connection import Bus
from standby.bus.translate import is_wrong_revision
from standby.domain.errors import BusUnavailable, InvalidInput, RevisionConflict, Unavailable
from standby.domain.values import Record

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Record)

KEY_PATTERN: Final = re.compile(r"[-/_=a-zA-Z0-9]+(\.[-/_=a-zA-Z0-9]+)*")
OPERATION_HEADER: Final = "KV-Operation"
DELETED: Final = "DEL"
REMOVALS: Final = frozenset({DELETED, "PURGE"})
TTL_HEADER: Final = "Nats-TTL"
EXPECTED_HEADER: Final = "Nats-Expected-Last-Subject-Sequence"
# A removal stays visible this long; afterwards the key leaves no trace, so that listings do not grow for ever.
MARKER_LIFE: Final = "1h"
READS_AT_ONCE: Final = 64
# The server names at most this many subjects in one answer.
MAX_KEYS: Final = 100_000
CREATE_ATTEMPTS: Final = 3
# JSNoMessageFound in the server's table of errors; a missing stream has another number.
NO_MESSAGE: Final = 10037


@dataclass(frozen=True)
class Entry(Generic[R]):
    """A value with the revision that a compare-and-set ``update`` must name."""

    key: str
    value: R
    revision: int


@dataclass(frozen=True)
class Stored:
    """What a key's subject holds: a value, or the marker of a removal (``payload`` None)."""

    key: str
    payload: bytes | None
    revision: int


@dataclass(frozen=True)
class Snapshot(Generic[R]):
    """A complete listing: every key that existed when it began is in ``entries`` or ``unreadable``, unless removed since.

    ``last_revision`` is the bucket's newest revision when the listing began; ``created`` tells one life of the bucket from the
    next: after a lost store, revisions begin again at 1.
    """

    entries: Mapping[str, Entry[R]]
    unreadable: frozenset[str] = field(default_factory=frozenset)
    last_revision: int = 0
    created: datetime | None = None


@dataclass(frozen=True)
class Known(Generic[R]):
    """What a copy has: ``entries`` that were complete when the bucket was at ``last_revision`` in the life ``created``."""

    entries: Mapping[str, Entry[R]]
    unreadable: frozenset[str] = field(default_factory=frozenset)
    last_revision: int = 0
    created: datetime | None = None


class Table(Generic[R]):
    """One bucket of records of one type.

    Every method raises BusUnavailable when the bus does not answer, and InvalidInput for a key that cannot be one. After a
    BusUnavailable the outcome of a write is unknown: read again.
    """

    def __init__(self, bus: Bus, bucket: str, record: type[R]) -> None:
        self.bus = bus
        self.bucket = bucket
        self.record = record
        self._stream = subjects.bucket_stream(bucket)
        self._given = set(record.model_fields)
        self._created: datetime | None = None
        self._reported: set[str] = set()

    async def get(self, key: str) -> Entry[R] | None:
        """Return the key's value and revision, or None. Raises Unavailable when this version cannot read the value."""
        stored = await self.read(key)
        if stored is None or stored.payload is None:
            return None
        entry = self.decode(stored)
        if entry is None:
            raise Unavailable(
                f"record {self.bucket}/{key} at revision {stored.revision} cannot be read by this version",
                remedy="upgrade this component, or write the record again",
            )
        return entry

    async def create(self, key: str, value: R, *, life_s: float | None = None) -> int:
        """Store ``value`` under a key that does not exist; return its revision. Raises RevisionConflict if it does.

        After ``life_s`` seconds the server forgets it, without a word to mirrors: for tables that nobody mirrors.
        """
        expected = 0
        life = {} if life_s is None else {TTL_HEADER: f"{max(1, math.ceil(life_s))}s"}
        for _ in range(CREATE_ATTEMPTS):
            try:
                return await self._write(key, value.encode(), {EXPECTED_HEADER: str(expected), **life}, revision=expected)
            except RevisionConflict:
                stored = await self.read(key)
                if stored is not None and stored.payload is not None:
                    raise RevisionConflict(
                        f"{self.bucket}/{key} exists already at revision {stored.revision}",
                        remedy="choose another name, or update it at that revision",
                    ) from None
                # The marker of a removal counts as a write: the next one must name it, until it expires.
                expected = stored.revision if stored is not None else 0
        raise RevisionConflict(f"{self.bucket}/{key} is being written by others", remedy="read again and decide again")

    async def put(self, key: str, value: R) -> int:
        """Store ``value`` whatever was there; return its revision. For tables with a single writer per key."""
        return await self._write(key, value.encode(), None)

    async def update(self, key: str, value: R, revision: int) -> int:
        """Store ``value`` if the key is still at ``revision``; return the new one. Raises RevisionConflict."""
        return await self._write(key, value.encode(), {EXPECTED_HEADER: str(revision)}, revision=revision)

    async def delete(self, key: str, revision: int | None = None) -> None:
        """Remove the key, or only if it is still at ``revision``; a missing key is no error. Raises RevisionConflict."""
        headers = {OPERATION_HEADER: DELETED, TTL_HEADER: MARKER_LIFE}
        if revision is not None:
            headers[EXPECTED_HEADER] = str(revision)
        await self._write(key, b"", headers, revision=revision)

    async def list(self, prefix: str = "") -> dict[str, Entry[R]]:
        """Return every entry whose key begins with ``prefix``; complete even while the keys are rewritten, {} when empty."""
        return dict((await self.snapshot(prefix)).entries)

    async def snapshot(self, prefix: str = "", known: Known[R] | None = None) -> Snapshot[R]:
        """Like ``list``, with what a mirror needs to tell a removal from a lost store.

        Names first, from the stream's own index in one answer, then a read of each: listing by a consumer misses keys that are
        rewritten meanwhile, because a rewritten message moves behind the reader's end (nats-io/nats.py#842). Where nothing was
        written since ``known`` was complete, its entries are what the reads would bring.
        """
        async with self.bus.asking(f"list {self.bucket}"):
            info = await self.bus.jetstream.stream_info(
                self._stream, subjects_filter=subjects.key_subject(self.bucket, wildcard(prefix))
            )
        self._note_life(info.created)
        skip = len(subjects.key_subject(self.bucket, ""))
        names = [name[skip:] for name in info.state.subjects or {} if name[skip:].startswith(prefix)]
        if len(names) >= MAX_KEYS:
            raise BusUnavailable(f"bucket {self.bucket} holds {len(names)} keys, limit {MAX_KEYS}", remedy="remove unused keys")
        if known is not None and known.created == info.created and known.last_revision == info.state.last_seq:
            same = {name: known.entries[name] for name in names if name in known.entries}
            return Snapshot(same, known.unreadable.intersection(names), info.state.last_seq, info.created)
        entries, unreadable = await self._read_all(names)
        return Snapshot(entries, frozenset(unreadable), info.state.last_seq, info.created)

    async def read(self, key: str) -> Stored | None:
        """Return what the key's subject holds, from the stream's leader; None when there is no trace of the key."""
        check_key(key)
        subject = subjects.key_subject(self.bucket, key)
        async with self.bus.asking(f"read {self.bucket}/{key}"):
            try:
                message = await self.bus.jetstream.get_msg(self._stream, subject=subject)
            except nats.js.errors.NotFoundError as error:
                if error.err_code != NO_MESSAGE:
                    raise
                return None
        removed = (message.headers or {}).get(OPERATION_HEADER) in REMOVALS
        return Stored(key, None if removed else message.data or b"", message.seq or 0)

    def decode(self, stored: Stored) -> Entry[R] | None:
        """Return the entry, or None when the value cannot be read: counted, and the key is named once in the log."""
        assert stored.payload is not None, stored.key
        try:
            value = self.record.model_validate_json(stored.payload)
        except ValidationError as error:
            faults = "; ".join(f"{'.'.join(map(str, part['loc']))}: {part['msg']}" for part in error.errors()[:3])
            self._report(stored.key, faults)
            return None
        # Of a copy of 10,000 records each would hold a set of its own of the names that were given: a third of all memory.
        object.__setattr__(value, "__pydantic_fields_set__", self._given)
        return Entry(stored.key, value, stored.revision)

    async def ensure(self) -> bool:
        """Make the bucket where it is missing, and bring an older one's configuration up to date; return whether it was made.

        A bucket that this process has seen before and that is gone is reported as a lost store.
        """
        wanted, made = self._configuration(), False
        async with self.bus.asking(f"open bucket {self.bucket}"):
            try:
                info = await self.bus.jetstream.stream_info(self._stream)
                if _differs(info.config, wanted):
                    info = await self.bus.jetstream.update_stream(wanted)
            except nats.js.errors.NotFoundError:
                info = await self.bus.jetstream.add_stream(wanted)
                made = True
        self._note_life(info.created)
        return made

    # ---- inside ----------------------------------------------------------------------------------------

    async def _write(self, key: str, payload: bytes, headers: dict[str, str] | None, revision: int | None = None) -> int:
        check_key(key)
        subject = subjects.key_subject(self.bucket, key)
        async with self.bus.asking(f"write {self.bucket}/{key}"):
            try:
                ack = await self.bus.jetstream.publish(subject, payload, headers=headers)
            except nats.js.errors.APIError as error:
                if not is_wrong_revision(error):
                    raise
                raise RevisionConflict(
                    f"{self.bucket}/{key} is not at revision {revision} any more ({error.description})",
                    remedy="read it again and decide again",
                ) from error
        return ack.seq

    async def _read_all(self, names: Sequence[str]) -> tuple[dict[str, Entry[R]], set[str]]:
        entries: dict[str, Entry[R]] = {}
        unreadable: set[str] = set()
        rest = iter(names)

        async def read_on() -> None:
            for name in rest:
                if not KEY_PATTERN.fullmatch(name):
                    # Somebody else's client wrote it; we could not have, and cannot ask for it.
                    self._report(name, "its key is not legal")
                    unreadable.add(name)
                    continue
                stored = await self.read(name)
                if stored is None or stored.payload is None:
                    continue
                entry = self.decode(stored)
                if entry is None:
                    unreadable.add(name)
                else:
                    entries[name] = entry

        try:
            # As many tasks as reads at once: one for each of 10,000 names costs more memory than all of their values.
            async with asyncio.TaskGroup() as group:
                for _ in range(min(READS_AT_ONCE, len(names))):
                    group.create_task(read_on())
        except BaseExceptionGroup as failures:
            # One cause, many reads: the first says it all.
            raise failures.exceptions[0] from None
        return {name: entries[name] for name in names if name in entries}, unreadable

    def _report(self, key: str, fault: str) -> None:
        self.bus.counters.undecodable_values += 1
        if key not in self._reported:
            self._reported.add(key)
            log.error("record %s/%s cannot be read and is skipped: %s", self.bucket, key, fault)

    def _note_life(self, created: datetime | None) -> None:
        if self._created is not None and created != self._created:
            self.bus.counters.store_losses += 1
            log.error("bucket %s was lost and made again: what only the store knew is gone", self.bucket)
        self._created = created

    def _configuration(self) -> api.StreamConfig:
        return api.StreamConfig(
            name=self._stream,
            description=f"standby table {self.bucket}",
            subjects=[subjects.key_subject(self.bucket, ">")],
            max_msgs_per_subject=1,
            discard=api.DiscardPolicy.NEW,
            storage=api.StorageType.FILE,
            num_replicas=self.bus.settings.nats_replicas,
            allow_rollup_hdrs=True,
            deny_delete=True,
            allow_msg_ttl=True,
            republish=api.RePublish(
                src=subjects.key_subject(self.bucket, ">"), dest=subjects.changed_subject(self.bucket, ">")
            ),
        )


def check_key(key: str) -> str:
    """Return ``key`` if it can be one. Raises InvalidInput otherwise."""
    if not KEY_PATTERN.fullmatch(key):
        raise InvalidInput(f"key {key[:120]!r} is not legal: parts of letters, digits, '-_/=' joined by single dots")
    return key


def wildcard(prefix: str) -> str:
    """The narrowest subject pattern that covers every key beginning with ``prefix``."""
    whole = prefix.rpartition(".")[0]
    return f"{whole}.>" if whole else ">"


def _differs(have: api.StreamConfig, want: api.StreamConfig) -> bool:
    return (have.num_replicas or 1) != want.num_replicas or have.republish is None or not have.allow_msg_ttl
