"""The ends of this node's engine logs, told to whoever may know: an endpoint's own tenant."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import ValidationError

from standby.bus.connection import Bus
from standby.bus.subjects import logs_subject
from standby.bus.subscription import Subscription
from standby.domain.engine_logs import MOST_LINES, EngineLog, LogAnswer, LogOrder
from standby.domain.errors import InvalidInput
from standby.domain.instance import HAS_PROCESS
from standby.runtime.engines.process_engine import log_file
from standby.runtime.log_following import Bounds, end_of, lines_after
from standby.runtime.log_words import last_lines
from standby.warm_pool.managed import Managed

# Of all logs in one answer together: the server's limit for a message is 1 MiB, and JSON may double what it quotes.
ANSWER_BYTES: Final = 384 * 1024


class _Read(NamedTuple):
    log: EngineLog
    mark: str
    renewed: bool = False


@dataclass(frozen=True)
class EngineLogs:
    """``instances`` are the agent's; only its loop changes them, and this runs in the same one."""

    node: str
    instances: Mapping[str, Managed]
    folder: Path

    async def serve(self, bus: Bus) -> Subscription:
        """Answer questions from the bus. Raises BusUnavailable."""
        return await bus.serve(logs_subject(self.node), self.answer)

    async def answer(self, _subject: str, payload: bytes) -> bytes:
        """Return the encoded LogAnswer to an encoded LogOrder. Raises InvalidInput."""
        try:
            order = LogOrder.model_validate_json(payload)
        except ValidationError as error:
            raise InvalidInput(
                f"no question about logs: {error.errors()[0]['msg']}", remedy="use a client of this version"
            ) from None
        return (await self.read(order)).encode()

    async def read(self, order: LogOrder) -> LogAnswer:
        """Return the ends of the logs that ``order`` means; each gets an equal share of the answer's size."""
        meant = sorted((one for one in self.instances.values() if _is_meant(one, order)), key=lambda one: one.id)
        share = ANSWER_BYTES // max(1, len(meant))
        read = [await self._read(one, order, share) for one in meant]
        return LogAnswer(
            node=self.node,
            logs=tuple(one.log for one in read),
            marks={one.log.instance: one.mark for one in read if one.mark},
            renewed=tuple(one.log.instance for one in read if one.renewed),
        )

    async def _read(self, managed: Managed, order: LogOrder, share: int) -> _Read:
        # An instance's id is given by the controller, never by a caller: no name of a caller reaches the file system.
        log = log_file(self.folder, managed.id, previous=order.previous)
        told = EngineLog(instance=managed.id, state=managed.life.state)
        mark = (order.after or {}).get(managed.id, "")
        ended = managed.life.state not in HAS_PROCESS
        try:
            if order.after is not None:
                before, bounds = log_file(self.folder, managed.id, previous=True), Bounds(MOST_LINES, share)
                found = await asyncio.to_thread(lines_after, mark, log, before, bounds, ended=ended)
                return _Read(told.model_copy(update={"lines": found.lines}), found.mark, found.renewed)
            mark, size = await asyncio.to_thread(end_of, log, ended=ended)
            lines, cut = await asyncio.to_thread(last_lines, log, order.lines, share, size)
        except FileNotFoundError:
            life = "life before this one" if order.previous else "engine of it has been started here yet"
            return _Read(told.model_copy(update={"missing": f"no {life}"}), mark)
        except OSError as error:
            return _Read(told.model_copy(update={"missing": f"its log cannot be read: {error.strerror}"}), mark)
        except ValueError:
            raise InvalidInput(f"{mark[:40]!r} is no mark of a log", remedy="give back what an earlier answer said") from None
        kept = _fitting(lines, share)
        return _Read(told.model_copy(update={"lines": kept, "cut": cut or len(kept) < len(lines)}), mark)


def _fitting(lines: tuple[str, ...], share: int) -> tuple[str, ...]:
    """Return the last lines that take no more than ``share`` bytes: each byte that was no text has become three."""
    left, first = share, len(lines)
    while first and (left := left - len(lines[first - 1].encode())) >= 0:
        first -= 1
    return lines[first:]


def _is_meant(managed: Managed, order: LogOrder) -> bool:
    mine = (managed.assignment.tenant, managed.assignment.endpoint) == (order.tenant, order.endpoint)
    return mine and order.instance in {"", managed.id}
