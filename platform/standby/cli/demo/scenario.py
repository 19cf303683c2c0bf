"""The demo's story, step by step, against a running deployment."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from standby.cli.demo.caller import Caller
from standby.cli.demo.report import Call, ConcurrentFirstRequests, Descent, Drain, Invocation
from standby.cli.output import size
from standby.cli.stack import Stack
from standby.domain.errors import StandbyError, Unavailable
from standby.domain.instance import Rung

MODEL: Final = "smol"
ENDPOINT: Final = "smol"
QUESTION: Final = "Name the capital of France."
# A second of a caller's wait is worth next to nothing here, so that the whole ladder is seen in a minute; in real life it is
# worth a thousand times as much. Asleep has a fixed time: where an engine starts in a second, these prices alone would rather
# start it again than hold what is left of it. So has the last rung: weights that nobody gives up stay on the disk.
POLICY: Final = {"wait_price": 0.1, "keep_asleep": "3s", "keep_staged": "2s", "max_instances": 1, "slots": 4}
FIRST_REQUESTS: Final = 20
DRAIN_CALLERS: Final = 4
DRAIN_SECONDS: Final = 5.0
STEP_LIMIT_S: Final = 60.0

Say = Callable[[str], None]


@dataclass
class Scenario:
    """``api`` speaks to the control routes, ``caller`` to the endpoint; ``say`` prints a line."""

    stack: Stack
    api: httpx.AsyncClient
    caller: Caller
    say: Say
    invocations: list[Invocation] = field(default_factory=list)
    descents: list[Descent] = field(default_factory=list)
    first_calls: list[Call] = field(default_factory=list)
    drain_calls: list[Call] = field(default_factory=list)

    async def register(self, uri: str, endpoint_url: str, region: str) -> dict[str, Any]:
        """Register the model from S3 and create an endpoint at zero."""
        source = {"endpoint_url": endpoint_url, "region": region}
        model = await self._post("/api/v1/models", {"name": MODEL, "source_uri": uri, "source": source})
        self.say(f"registered it: {model['object_count']} object, {size(model['bytes'])}, {model['facts']['architecture']}")
        await self._post("/api/v1/endpoints", {"name": ENDPOINT, "model": MODEL, "policy": POLICY})
        self.say("created endpoint 'smol' at zero: nothing runs, nothing is downloaded")
        return model

    async def up_the_ladder_from_cold(self) -> None:
        """First invocation from cold, then warm ones, then one whose text is shown as it streams."""
        await self._ask("cold")
        for number in (1, 2, 3):
            await self._ask(f"warm {number}")
        pieces: list[str] = []
        answer = await self.caller.invoke("streamed", "Write one sentence about rivers.", max_tokens=40, on_text=pieces.append)
        self.invocations.append(answer)
        self.say(f"streamed in {len(pieces)} pieces: {answer.text!r}")

    async def down_and_up_again(self) -> None:
        """Idle down to asleep and wake; idle down to staged and start."""
        await self._descend_to(Rung.ASLEEP)
        await self._ask("asleep")
        await self._descend_to(Rung.ASLEEP, note=False)
        await self._descend_to(Rung.STAGED)
        await self._ask("staged")

    async def many_first_requests(self) -> ConcurrentFirstRequests:
        """Twenty callers at once at zero: one activation serves them all."""
        await self._descend_to(Rung.COLD)
        self.say(f"{FIRST_REQUESTS} first requests at once …")
        async with self._climbs() as climbs:
            results = await asyncio.gather(
                *(
                    self.caller.invoke(f"first {n}", f"Name the capital of country number {n}.", max_tokens=4)
                    for n in range(FIRST_REQUESTS)
                ),
                return_exceptions=True,
            )
            await self._until_told_of_the_present_climb(climbs)
        good = [result for result in results if isinstance(result, Invocation)]
        self.first_calls = [_call(0.0, result if isinstance(result, Invocation) else None) for result in results]
        for fault in {repr(result) for result in results if isinstance(result, BaseException)}:
            self.say(f"failed: {fault}")
        return ConcurrentFirstRequests(requests=FIRST_REQUESTS, ok=len(good), activations=len(climbs))

    async def drain_under_load(self) -> Drain:
        """Restart the node while callers keep calling: what runs ends, what arrives waits, nothing fails."""
        self.say(f"{DRAIN_CALLERS} callers keep calling while the node is told to stop and comes back …")
        tally = _Tally()
        async with asyncio.TaskGroup() as callers:
            for number in range(DRAIN_CALLERS):
                callers.create_task(self._keep_calling(number, tally))
            await tally.warmed_up.wait()
            self.stack.children["node"].restart()
            # From here on: on a slow machine the first answers alone may take as long.
            await asyncio.sleep(DRAIN_SECONDS)
            tally.over = True
        self.drain_calls = sorted(tally.calls, key=lambda call: call.at_s)
        return Drain(requests=len(tally.calls), failed=sum(call.total_ms is None for call in tally.calls))

    async def delete(self) -> None:
        """Delete the endpoint and wait until nothing of it is left."""
        answer = await self.api.delete(f"/api/v1/endpoints/{ENDPOINT}")
        answer.raise_for_status()
        async with asyncio.timeout(STEP_LIMIT_S):
            while (await self.api.get(f"/api/v1/endpoints/{ENDPOINT}")).status_code != 404:
                await asyncio.sleep(0.05)
        self.say("deleted the endpoint: back to zero")

    # ---- inside ------------------------------------------------------------------------------------------------

    async def _ask(self, label: str) -> None:
        answer = await self.caller.invoke(label, QUESTION)
        self.invocations.append(answer)
        self.say(f"{label}: first token after {answer.first_token_ms:.0f} ms: {answer.text!r}")

    async def _descend_to(self, rung: Rung, *, note: bool = True) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(STEP_LIMIT_S):
                while not _rests_on(view := await self._endpoint(), rung):
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise Unavailable(
                f"the endpoint did not come to rest on {rung.label} within {STEP_LIMIT_S:g} s; the last word: "
                f"{await self._reason() or 'none'}",
                remedy="run it again with --keep-logs FOLDER and see what the controller says there",
            ) from None
        if note:
            held = sum(instance["resident_bytes"] for instance in view["instances"])
            reason = await self._reason()
            after_s = round(time.monotonic() - began, 1)
            self.descents.append(Descent(rung=rung.label, after_s=after_s, resident_bytes=held, reason=reason))
            self.say(f"idle: now {rung.label}, holding {held / 2**20:.0f} MiB; {reason}")

    async def _reason(self) -> str:
        """Return why the controller let it fall, in its own words, as `standby why` tells them."""
        answer = await self.api.get(f"/api/v1/endpoints/{ENDPOINT}/why", params={"last": 5})
        answer.raise_for_status()
        falls = [one["reason"] for one in answer.json()["decisions"] if one["action"] in {"sink", "unassign"}]
        return str(falls[0]) if falls else ""

    async def _endpoint(self) -> dict[str, Any]:
        answer = await self.api.get(f"/api/v1/endpoints/{ENDPOINT}")
        answer.raise_for_status()
        view: dict[str, Any] = answer.json()
        return view

    @asynccontextmanager
    async def _climbs(self) -> AsyncIterator[set[str]]:
        """Yield the ids of all climbs that end from now on, the failed ones included, as the endpoint's events tell them."""
        seen: set[str] = set()

        async def follow(lines: AsyncIterator[str]) -> None:
            async for line in lines:
                if line.startswith("data:") and (event := json.loads(line[5:]))["kind"] == "activation":
                    seen.add(event["activation"]["id"])

        # The answer begins once the subscription stands: nothing that happens inside the block is missed.
        async with self.api.stream("GET", "/api/v1/events", params={"endpoint": ENDPOINT}) as answer:
            answer.raise_for_status()
            following = asyncio.create_task(follow(answer.aiter_lines()))
            try:
                yield seen
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

    async def _until_told_of_the_present_climb(self, climbs: set[str]) -> None:
        view = await self._endpoint()
        present = {instance["activation"]["id"] for instance in view["instances"] if instance["activation"]}
        async with asyncio.timeout(STEP_LIMIT_S):
            while not present <= climbs:
                await asyncio.sleep(0.02)

    async def _keep_calling(self, number: int, tally: _Tally) -> None:
        turn = 0
        while not tally.over:
            turn += 1
            at_s, answer = time.monotonic() - tally.began, None
            try:
                answer = await self.caller.invoke("drain", f"Count from {number} to {turn}.", max_tokens=8)
            except (StandbyError, httpx.HTTPError) as error:
                self.say(f"failed: {error!r}")
            tally.calls.append(_call(at_s, answer))
            tally.warmed_up.set()

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = await self.api.post(path, json=body)
        if answer.status_code not in {200, 201}:
            raise StandbyError(f"{path} answered {answer.status_code}: {answer.text[:500]}")
        view: dict[str, Any] = answer.json()
        return view


def _rests_on(view: dict[str, Any], rung: Rung) -> bool:
    """Whether nothing moves any more: every instance has reached ``rung``, or for cold there is none."""
    states = [instance["state"] for instance in view["instances"]]
    return not states if rung is Rung.COLD else bool(states) and set(states) == {rung.label}


def _call(at_s: float, answer: Invocation | None) -> Call:
    if answer is None:
        return Call(at_s=round(at_s, 3))
    return Call(at_s=round(at_s, 3), first_token_ms=answer.first_token_ms, total_ms=answer.total_ms)


@dataclass
class _Tally:
    began: float = field(default_factory=time.monotonic)
    calls: list[Call] = field(default_factory=list)
    warmed_up: asyncio.Event = field(default_factory=asyncio.Event)
    over: bool = False
