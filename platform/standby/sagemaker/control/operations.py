"""Every operation that is served, by service and name, ready for whoever carries requests to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from standby.sagemaker.auth.caller import Caller
from standby.sagemaker.control import (
    autoscaling,
    endpoint_configs,
    endpoint_updates,
    endpoints,
    inference_components,
    models,
    sts,
    tags,
)
from standby.sagemaker.control.context import ControlCall, ControlContext, Handler, Request
from standby.sagemaker.dispatch import Operation
from standby.sagemaker.shapes.services import AUTOSCALING, SAGEMAKER, STS

_TABLES: Final[tuple[tuple[str, Mapping[str, Handler]], ...]] = (
    (SAGEMAKER, models.HANDLERS),
    (SAGEMAKER, endpoint_configs.HANDLERS),
    (SAGEMAKER, endpoints.HANDLERS),
    (SAGEMAKER, endpoint_updates.HANDLERS),
    (SAGEMAKER, tags.HANDLERS),
    (SAGEMAKER, inference_components.HANDLERS),
    (AUTOSCALING, autoscaling.HANDLERS),
    (STS, sts.HANDLERS),
)

HANDLERS: Final[Mapping[tuple[str, str], Handler]] = {
    (service, name): handler for service, handlers in _TABLES for name, handler in handlers.items()
}


def operations(
    context: ControlContext, handlers: Mapping[tuple[str, str], Handler] = HANDLERS
) -> dict[tuple[str, str], Operation]:
    """Return the operations; each is called with its caller, the request's id and its members."""
    return {name: _operation(context, handler) for name, handler in handlers.items()}


def _operation(context: ControlContext, handler: Handler) -> Operation:
    async def carry_out(caller: Caller, request_id: str, request: Request) -> dict[str, Any]:
        return await handler(ControlCall(caller, context, request_id), request)

    return carry_out
