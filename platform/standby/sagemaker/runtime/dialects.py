"""How an ``inputs`` caller wants to be answered: as LMI's containers do, or as TGI's. Pure.

The model's environment decides (``STANDBY_OUTPUT``, LMI's own ``OPTION_OUTPUT_FORMATTER`` and ``OPTION_TGI_COMPAT``), then
the image that it names, then the caller's Accept.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from standby.domain.aws import AwsKind, AwsResource
from standby.sagemaker.runtime.contract import Resources

HEARTBEAT_TAG: Final = "standby:heartbeat"


class Family(StrEnum):
    """Whose answers."""

    LMI = "lmi"
    TGI = "tgi"


class Lines(StrEnum):
    """How a stream is written."""

    JSON_LINES = "jsonlines"
    SSE = "sse"


class Dialect(NamedTuple):
    """``family`` chooses the members, ``lines`` the framing of a stream."""

    family: Family
    lines: Lines

    @property
    def content_type(self) -> bytes:
        """The media type of a stream."""
        return b"text/event-stream" if self.lines is Lines.SSE else b"application/jsonlines"


LMI: Final = Dialect(Family.LMI, Lines.JSON_LINES)
TGI: Final = Dialect(Family.TGI, Lines.SSE)
_FORMATTERS: Final = {"jsonlines": Lines.JSON_LINES, "json": Lines.JSON_LINES, "sse": Lines.SSE}
_TRUE: Final = frozenset({"true", "1", "yes"})


def dialect(environment: Mapping[str, str], image: str, accept: bytes | None) -> Dialect:
    """Return what to answer in; ``accept`` is the caller's Accept header."""
    family = _family(environment, image)
    named = _FORMATTERS.get(environment.get("OPTION_OUTPUT_FORMATTER", "").strip().lower())
    if named is not None:
        return Dialect(family or Family.LMI, named)
    if family is not None:
        return TGI if family is Family.TGI else LMI
    return TGI if b"text/event-stream" in (accept or b"").lower() else LMI


def _family(environment: Mapping[str, str], image: str) -> Family | None:
    asked = environment.get("STANDBY_OUTPUT", "").strip().lower()
    if asked in (Family.LMI, Family.TGI):
        return Family(asked)
    if environment.get("OPTION_TGI_COMPAT", "").strip().lower() in _TRUE:
        return Family.TGI
    if "tgi-inference" in image or "text-generation-inference" in image:
        return Family.TGI
    return None


class Declared:
    """What AWS's clients have declared of models and endpoints that this tenant's requests meet."""

    def __init__(self, resources: Resources | None) -> None:
        self._resources = resources

    def dialect(self, tenant: str, model: str, accept: bytes | None) -> Dialect:
        """Return the dialect of a model."""
        container = _container(self._of(tenant, AwsKind.MODEL, model))
        environment = container.get("Environment") or {}
        return dialect(environment, str(container.get("Image") or ""), accept)

    def heartbeat(self, tenant: str, endpoint: str) -> str | None:
        """Return the endpoint's tag ``standby:heartbeat``."""
        found = self._of(tenant, AwsKind.ENDPOINT, endpoint)
        return None if found is None else found.tags.get(HEARTBEAT_TAG)

    def _of(self, tenant: str, kind: AwsKind, name: str) -> AwsResource | None:
        if self._resources is None:
            return None
        entry = self._resources.entries.get(f"{tenant}.{kind.value}.{name}")
        return None if entry is None else entry.value


def _container(model: AwsResource | None) -> Mapping[str, Any]:
    if model is None:
        return {}
    primary = model.request.get("PrimaryContainer")
    if primary is None:
        containers = model.request.get("Containers") or [{}]
        primary = containers[0]
    return dict(primary)
