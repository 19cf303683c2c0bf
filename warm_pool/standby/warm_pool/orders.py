"""What an operator orders of this node's artifact cache, carried out once for each intent."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import Final, assert_never

from pydantic import ValidationError

from standby.bus.connection import Bus
from standby.bus.subjects import command_subject
from standby.bus.subscription import Subscription
from standby.domain.cache_orders import MIN_PREFIX, CacheAction, CacheAnswer, CacheOrder
from standby.domain.errors import InvalidInput, NotFound
from standby.domain.node import CachedArtifact
from standby.warm_pool.cache import ArtifactCache

_log = logging.getLogger(__name__)

REMEMBERED: Final = 1000
"""Answers that are kept for an order that comes again."""


class CacheOrders:
    """Carries out orders one after another, so that no two of them meet in the cache."""

    def __init__(self, node: str, cache: ArtifactCache) -> None:
        self._node = node
        self._cache = cache
        self._answers: OrderedDict[str, CacheAnswer] = OrderedDict()
        self._turn = asyncio.Lock()

    async def serve(self, bus: Bus) -> Subscription:
        """Take orders from the bus. Raises BusUnavailable."""
        return await bus.serve(command_subject(self._node), self.answer)

    async def answer(self, _subject: str, payload: bytes) -> bytes:
        """Return the encoded CacheAnswer to an encoded CacheOrder. Raises as ``carry_out`` does."""
        try:
            order = CacheOrder.model_validate_json(payload)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise InvalidInput(
                f"no order for a cache: {where}: {first['msg']}", remedy="use a client of this version"
            ) from None
        return (await self.carry_out(order)).encode()

    async def carry_out(self, order: CacheOrder) -> CacheAnswer:
        """Do what ``order`` says; one that was carried out before is answered as then.

        Raises InvalidInput (a prefix that is too short or means several), NotFound, Conflict (in use, or pinned).
        """
        async with self._turn:
            known = self._answers.get(order.intent)
            if known is not None:
                return known
            answer = await self._carry_out(order)
            self._answers[order.intent] = answer
            if len(self._answers) > REMEMBERED:
                self._answers.popitem(last=False)
            return answer

    async def _carry_out(self, order: CacheOrder) -> CacheAnswer:
        if order.action is CacheAction.LIST:
            await self._cache.measure()
            return self._answered(order, self._cache.contents())
        digest = resolve(order.artifact, self._cache.contents())
        before = self._cache.describe(digest)
        freed = 0
        match order.action:
            case CacheAction.PIN:
                changed = await self._cache.keep(digest, order.by)
            case CacheAction.UNPIN:
                changed = await self._cache.let_go(digest)
            case CacheAction.EVICT:
                freed = await self._cache.evict(digest)
                changed = True
            case _:
                assert_never(order.action)
        _log.info("%s of artifact %s by %s", order.action.value, digest[:12], order.by, extra={"changed": changed})
        after = before if order.action is CacheAction.EVICT else self._cache.describe(digest)
        return self._answered(order, (after,), changed=changed, freed=freed)

    def _answered(
        self, order: CacheOrder, artifacts: tuple[CachedArtifact, ...], *, changed: bool = False, freed: int = 0
    ) -> CacheAnswer:
        return CacheAnswer(
            node=self._node,
            intent=order.intent,
            action=order.action,
            artifacts=artifacts,
            changed=changed,
            freed_bytes=freed,
            used_bytes=self._cache.used_bytes,
            capacity_bytes=self._cache.capacity_bytes,
        )


def resolve(prefix: str, artifacts: tuple[CachedArtifact, ...]) -> str:
    """Return the digest of the only artifact that begins with ``prefix``. Raises InvalidInput, NotFound."""
    if len(prefix) < MIN_PREFIX:
        raise InvalidInput(
            f"{prefix!r} is too short to name an artifact", remedy=f"give at least {MIN_PREFIX} digits of its digest"
        )
    found = [item.digest for item in artifacts if item.digest.startswith(prefix)]
    if not found:
        raise NotFound(f"no artifact {prefix!r} in this node's cache", remedy="list the cache to see what is there")
    if len(found) > 1:
        several = ", ".join(digest[: len(prefix) + MIN_PREFIX] for digest in found[:5])
        raise InvalidInput(f"{prefix!r} means {len(found)} artifacts: {several}", remedy="give more digits")
    return found[0]
