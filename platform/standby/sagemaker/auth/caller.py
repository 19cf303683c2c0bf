"""Who calls, once it has been proven."""

from __future__ import annotations

from dataclasses import dataclass

from standby.domain.access import Scope
from standby.domain.priority import Priority
from standby.sagemaker.auth import refusals

DEFAULT_REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class Caller:
    """``region`` is the one that was signed for; ``admin`` is true of administrators' bearer keys only.

    ``priority`` is the key's own, if it has one.
    """

    tenant: str
    key_id: str
    scopes: tuple[Scope, ...]
    arn: str
    region: str
    admin: bool = False
    priority: Priority | None = None

    def require(self, scope: Scope, action: str, resource: str = "*") -> None:
        """Return where the key may be used for ``scope``. Raises AwsError (AccessDeniedException)."""
        if scope not in self.scopes:
            raise refusals.denied(self.arn, action, resource)


def user_arn(tenant: str, name: str) -> str:
    """Return the ARN by which messages and GetCallerIdentity name the caller."""
    return f"arn:aws:iam::{tenant}:user/{name}"
