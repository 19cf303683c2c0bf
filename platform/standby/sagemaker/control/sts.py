"""STS, as far as SDKs ask it for their account before they do anything else."""

from __future__ import annotations

from typing import Any, Final

from standby.sagemaker.control.context import ControlCall, Handler, Request


async def get_caller_identity(call: ControlCall, _request: Request) -> dict[str, Any]:
    """Return the account, the ARN and the key's id of whoever signed."""
    return {"UserId": call.caller.key_id, "Account": call.caller.tenant, "Arn": call.caller.arn}


HANDLERS: Final[dict[str, Handler]] = {"GetCallerIdentity": get_caller_identity}
