"""How an answer on ``/v1`` is told: whole answers and errors as they are, streams with comments and errors in band."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pydantic_core
from starlette.types import Send

from standby.domain.errors import EngineDied, StandbyError
from standby.gateway.errors import error_body
from standby.gateway.http import send_error
from standby.sagemaker.runtime.contract import Arrival, ContainerAnswered
from standby.sagemaker.runtime.openai_outlet import OpenAIOutlet, envelope_of

BROKEN_REMEDY: Final = "ask again; what came before is not the whole answer"


def outlet_of(arrival: Arrival, send: Send, monotonic: Callable[[], float], heartbeat_s: float | None) -> OpenAIOutlet:
    """Return where a stream's answer goes; ``close`` it at the end."""
    return OpenAIOutlet(send, [(b"x-request-id", arrival.echoed)], monotonic, heartbeat_s, passes_errors=True)


async def refuse(error: StandbyError, arrival: Arrival, send: Send, outlet: OpenAIOutlet | None) -> None:
    """Tell of an error: with its own status while that can be told, else in band."""
    if outlet is not None and outlet.started:
        await outlet.fail(pydantic_core.to_json(error_body(error)))
    else:
        await send_error(send, error, [(b"x-request-id", arrival.echoed)])


async def break_off(reason: str, outlet: OpenAIOutlet) -> None:
    """End a stream that broke off in its middle, unless the relay has done so."""
    await outlet.fail(pydantic_core.to_json(error_body(EngineDied(reason, remedy=BROKEN_REMEDY))))


async def tell_engines_error(answered: ContainerAnswered, outlet: OpenAIOutlet) -> None:
    """Tell in band what the engine has answered after our own head had gone out."""
    await outlet.fail(envelope_of(answered.status, answered.body))
