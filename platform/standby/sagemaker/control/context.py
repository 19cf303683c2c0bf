"""What every operation of the control plane is given, and the refusals that they share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from standby.domain.access import Quotas
from standby.domain.aws import AwsKind, arn
from standby.sagemaker.auth.caller import Caller
from standby.sagemaker.control.records import Records
from standby.sagemaker.control.usage import Usages
from standby.sagemaker.errors import AwsError, validation
from standby.sagemaker.shapes.paging import Pager

# How AWS's messages name a kind.
WORDS: Final = {
    AwsKind.MODEL: "model",
    AwsKind.ENDPOINT_CONFIG: "endpoint configuration",
    AwsKind.ENDPOINT: "endpoint",
    AwsKind.INFERENCE_COMPONENT: "inference component",
}


class Background(Protocol):
    """What goes on after an operation has answered, as standby.sagemaker.control.background.Background does it."""

    def look_at(self, tenant: str, model: str) -> None:
        """Look at the artifact of a model whose record says that this process does."""

    async def look_again(self, tenant: str, model: str) -> None:
        """Look again at an artifact that could not be served."""

    def watch(self, tenant: str, endpoint: str) -> None:
        """Conclude the endpoint as soon as its models are known to be good or not."""


@dataclass(frozen=True, slots=True)
class ControlContext:
    """Everything that the control plane's operations need; the gateway makes one.

    ``quotas`` returns a tenant's limits; ``strict`` answers as AWS does where we are more generous; ``settle_s`` is for how
    long a description waits for what is about to change, since AWS's waiters look again only after half a minute.
    """

    records: Records
    background: Background
    quotas: Callable[[str], Quotas]
    pager: Pager
    region: str = "us-east-1"
    strict: bool = False
    settle_s: float = 2.0
    # The gateway's own lock over checks of several tables: the model that an endpoint of the other API is being made of.
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    usages: Usages = field(default_factory=Usages)


@dataclass(frozen=True, slots=True)
class ControlCall:
    """One authenticated request; every name in it is one of its caller's tenant."""

    caller: Caller
    context: ControlContext
    request_id: str = ""

    @property
    def tenant(self) -> str:
        """Whose names are meant."""
        return self.caller.tenant

    @property
    def records(self) -> Records:
        """The records behind it all."""
        return self.context.records

    def arn(self, kind: AwsKind, name: str) -> str:
        """Return the ARN of a resource of the caller's."""
        return arn(self.context.region, self.tenant, kind, name)

    def missing(self, kind: AwsKind, name: str) -> AwsError:
        """Return the one answer for what does not exist and for what belongs to somebody else."""
        return validation(f'Could not find {WORDS[kind]} "{self.arn(kind, name)}".')

    def existing(self, kind: AwsKind, name: str) -> AwsError:
        """Return the refusal of a name that is taken."""
        return validation(f'Cannot create already existing {WORDS[kind]} "{self.arn(kind, name)}".')

    def busy(self, name: str) -> AwsError:
        """Return the refusal of a change while another one is under way."""
        return validation(f'Cannot update in-progress endpoint "{self.arn(AwsKind.ENDPOINT, name)}".')


Request = dict[str, Any]
Handler = Callable[[ControlCall, Request], Awaitable[dict[str, Any]]]
