"""What goes on after an operation has answered: artifacts are looked at, endpoints that wait for them are concluded.

No process owns it. All that must not be forgotten stands in the tables, every step is a compare-and-set that anybody may
take, and taking it twice changes nothing; so there is no election, and a gateway that dies in the middle of anything is
replaced by whichever other one looks next. Only the look at an artifact is expensive: whoever does it says every few
seconds that it lives, and the others begin only when that stops. Seconds of silence are counted by each process's own
clock.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from standby.bus.tables import Entry
from standby.domain.aws import AwsKind, AwsResource
from standby.domain.endpoint import EndpointStatus
from standby.domain.errors import ArtifactError, BusUnavailable, Conflict, RevisionConflict, StandbyError, Unavailable
from standby.domain.model import Model
from standby.domain.names import HIDDEN, key
from standby.host import tasks as host_tasks
from standby.sagemaker.control import inspected
from standby.sagemaker.control.inspection import Inspector
from standby.sagemaker.control.leftovers import Leftovers
from standby.sagemaker.control.records import Records, aws_key
from standby.sagemaker.control.status import concluded, settled

log = logging.getLogger(__name__)

AT_ONCE: Final = 8
BEAT_S: Final = 4.0
TAKE_OVER_S: Final = 15.0
SWEEP_S: Final = 10.0
LOOK_S: Final = 0.1
_TRIES: Final = 20


class Background:
    """One for each gateway; ``start`` and ``stop`` it. ``clock`` is monotonic, in seconds."""

    def __init__(
        self,
        records: Records,
        inspector: Inspector,
        *,
        clock: Callable[[], float] = time.monotonic,
        beat_s: float = BEAT_S,
        take_over_s: float = TAKE_OVER_S,
        sweep_s: float = SWEEP_S,
        look_s: float = LOOK_S,
    ) -> None:
        self._records = records
        self._inspector = inspector
        self._clock = clock
        self._beat_s, self._take_over_s, self._sweep_s, self._look_s = beat_s, take_over_s, sweep_s, look_s
        self._looking: dict[str, asyncio.Task[None]] = {}
        self._watched: set[tuple[str, str]] = set()
        self._silent: dict[str, tuple[int, float]] = {}
        self._leftovers = Leftovers(records)
        self._places = asyncio.Semaphore(AT_ONCE)
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin, and take up what others have left."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End; what is not finished is taken up by another gateway, or by the next life of this one."""
        tasks = [*self._looking.values(), *([] if self._task is None else [self._task])]
        await host_tasks.end(tasks)
        self._looking.clear()
        self._task = None

    def look_at(self, tenant: str, model: str) -> None:
        """Look at the artifact of a model whose record says that this process does; one look at a time."""
        where = aws_key(tenant, AwsKind.MODEL, model)
        if where in self._looking:
            return
        task = asyncio.get_running_loop().create_task(self._look(tenant, model))
        self._looking[where] = task
        task.add_done_callback(lambda _task: self._looking.pop(where, None))

    async def look_again(self, tenant: str, model: str) -> None:
        """Look again at an artifact that could not be served, or whose record of ours was removed."""

        def again(resource: AwsResource) -> AwsResource | None:
            if inspected.is_running(resource):
                return None
            return self._of_mine(resource, 0)

        if await self._records.change_resource(tenant, AwsKind.MODEL, model, again) is not None:
            self.look_at(tenant, model)

    def watch(self, tenant: str, endpoint: str) -> None:
        """Conclude the endpoint as soon as all its models are known to be good or not."""
        self._watched.add((tenant, endpoint))
        self._wake.set()

    async def conclude(self, tenant: str, name: str) -> bool:
        """Conclude the endpoint if that is possible by now; return whether there is nothing left to wait for."""
        entry = self._records.copies.endpoints.entries.get(key(tenant, name))
        if entry is None:
            return True
        endpoint = entry.value
        waits_for = endpoint.pending_config if endpoint.pending_config is not None else endpoint.config
        waiting = endpoint.pending_config is not None or endpoint.status is EndpointStatus.CREATING
        if not waiting or endpoint.status is EndpointStatus.DELETING:
            return True
        config = await self._records.config(tenant, waits_for)
        if config is None:
            return False
        variants = config.value.variants
        verdict = settled(variants, [self._records.verdict(tenant, variant.model) for variant in variants], self._records.now())
        if verdict is None:
            return False
        after = await self._records.change_endpoint(
            tenant,
            name,
            lambda found: (
                concluded(found, variants, verdict)
                if (found.created_at, found.pending_config) == (endpoint.created_at, endpoint.pending_config)
                else None
            ),
        )
        if after is not None and after != endpoint:
            await self._records.announce(after, "" if verdict.failure is None else verdict.failure.reason)
        return True

    # ---- the loop ----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        next_sweep = self._clock()
        while True:
            try:
                if self._clock() >= next_sweep:
                    next_sweep = self._clock() + self._sweep_s
                    await self._sweep()
                for tenant, name in list(self._watched):
                    if await self._needs_no_look(tenant, name):
                        self._watched.discard((tenant, name))
            except (Unavailable, Conflict) as error:
                log.warning("endpoints of AWS's clients are looked at again in a moment: %s", error)
            self._wake.clear()
            pause = self._look_s if self._watched else max(0.0, next_sweep - self._clock())
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _needs_no_look(self, tenant: str, name: str) -> bool:
        """Conclude one endpoint; whatever is wrong with its records keeps no other one waiting. Raises BusUnavailable."""
        try:
            return await self.conclude(tenant, name)
        except BusUnavailable:
            raise
        except Conflict:
            return False
        except Unavailable as error:
            log.warning("endpoint %s of %s is looked at again by the next sweep: %s", name, tenant, error)
            return True

    async def _sweep(self) -> None:
        """Take up what nobody does: endpoints that wait, and looks whose gateway fell silent. Remove what is left over."""
        copies = self._records.copies
        for number, entry in enumerate(list(copies.endpoints.entries.values())):
            await _breathe(number)
            endpoint = entry.value
            if endpoint.status is EndpointStatus.CREATING or HIDDEN in (endpoint.pending_config or ""):
                self._watched.add((endpoint.tenant, endpoint.name))
        for number, resource in enumerate(list(copies.aws.entries.values())):
            await _breathe(number)
            if resource.value.kind is AwsKind.MODEL and inspected.is_running(resource.value):
                await self._take_up(resource)
            else:
                self._silent.pop(resource.key, None)
        self._silent = {name: seen for name, seen in self._silent.items() if name in copies.aws.entries}
        await self._leftovers.sweep()

    async def _take_up(self, entry: Entry[AwsResource]) -> None:
        resource = entry.value
        if entry.key in self._looking:
            return
        if resource.state.get(inspected.BY) != self._records.source:
            revision, since = self._silent.get(entry.key, (-1, 0.0))
            if revision != entry.revision:
                self._silent[entry.key] = (entry.revision, self._clock())
                return
            if self._clock() - since < self._take_over_s:
                return
            mine = self._of_mine(resource, inspected.beat_of(resource.state) + 1)
            try:
                await self._records.tables.aws.update(entry.key, mine, entry.revision)
            except RevisionConflict:
                return  # it lives after all, or another gateway was faster
        self.look_at(resource.tenant, resource.name)

    # ---- one look ----------------------------------------------------------------------------------------------

    async def _look(self, tenant: str, name: str) -> None:
        """Look at one artifact and write down what came of it; what the bus does not take now is taken up by the sweep."""
        try:
            entry = await self._records.tables.aws.get(aws_key(tenant, AwsKind.MODEL, name))
            if entry is None:
                return
            resource = entry.value
            look = asyncio.get_running_loop().create_task(self._found(resource))
            try:
                while not (await asyncio.wait({look}, timeout=self._beat_s))[0]:
                    if not await self._live(resource):
                        return
                found = look.result()
            finally:
                await host_tasks.end([look])
            if isinstance(found, dict):
                await self._write(resource, found)
            else:
                await self._store(resource, *found)
        except BusUnavailable as error:
            log.warning("the look at model %s of %s is not written down yet: %s", name, tenant, error)
        except StandbyError:
            log.exception("the look at model %s of %s ended early", name, tenant)
        finally:
            self._wake.set()

    async def _found(self, resource: AwsResource) -> tuple[Model, tuple[str, ...]] | dict[str, object]:
        """Return the model and the notes on it, or the state that says why there is none."""
        async with self._places:
            try:
                return await self._inspector.look(resource)
            except BusUnavailable:
                raise
            except StandbyError as error:
                kind = "artifact" if isinstance(error, ArtifactError) else "request"
                log.info("model %s of %s cannot be served (%s): %s", resource.name, resource.tenant, kind, error)
                return inspected.failed(str(error), error.code)
            except Exception as error:  # a mistake of ours must not leave endpoints in Creating for ever
                log.exception("the look at model %s of %s failed", resource.name, resource.tenant)
                return inspected.failed(f"the artifact could not be looked at: {type(error).__name__}", "internal_error")

    async def _store(self, resource: AwsResource, model: Model, notes: tuple[str, ...]) -> None:
        """Store our model first, then say that it is good; take it back where the resource went away meanwhile."""
        models, where = self._records.tables.models, key(resource.tenant, resource.name)
        known = await self._records.tables.aws.get(aws_key(resource.tenant, AwsKind.MODEL, resource.name))
        if known is None or known.value.created_at != resource.created_at:
            return
        revision = await self._created(where, model)
        if revision is None:
            taken = f"a model was registered as {resource.name} by other means meanwhile"
            await self._write(resource, inspected.failed(taken, Conflict.code))
        elif not await self._write(resource, inspected.good(notes)):
            with suppress(RevisionConflict):  # whoever changed it has taken it over
                await models.delete(where, revision)

    async def _created(self, where: str, model: Model) -> int | None:
        """Store the model and return its revision; None where the name stays taken by another one.

        One of an earlier resource of this name goes by itself in a moment; one of the same moment is another gateway's look
        at the same resource, and as good.
        """
        models = self._records.tables.models
        for _ in range(_TRIES):
            try:
                return await models.create(where, model)
            except RevisionConflict:
                other = await models.get(where)
            if other is not None and other.value.created_at == model.created_at:
                return other.revision
            await asyncio.sleep(self._look_s)
        return None

    async def _write(self, resource: AwsResource, state: dict[str, object]) -> bool:
        """Write the state into the resource; False where it is gone, or another one by now."""

        def told(found: AwsResource) -> AwsResource | None:
            return found.model_copy(update={"state": state}) if found.created_at == resource.created_at else None

        after = await self._records.change_resource(resource.tenant, AwsKind.MODEL, resource.name, told)
        return after is not None and after.created_at == resource.created_at

    async def _live(self, resource: AwsResource) -> bool:
        """Say that the look goes on; False where nobody wants it any more."""
        live = False

        def beat(found: AwsResource) -> AwsResource | None:
            nonlocal live
            live = found.created_at == resource.created_at and inspected.is_running(found)
            return self._of_mine(found, inspected.beat_of(found.state) + 1) if live else None

        await self._records.change_resource(resource.tenant, AwsKind.MODEL, resource.name, beat)
        return live

    def _of_mine(self, resource: AwsResource, beat: int) -> AwsResource:
        return resource.model_copy(update={"state": inspected.running(self._records.source, beat)})


async def _breathe(number: int) -> None:
    """Let requests through: a walk over ten thousand records takes milliseconds."""
    if number % 500 == 499:
        await asyncio.sleep(0)
