"""The one tree of errors: each says what failed, the value, the limit and the remedy.

StandbyError
├── InvalidInput 400 ── MalformedJson · VariantNotFound
├── NotAuthenticated 401
├── Forbidden 403
├── NotFound 404 ── EndpointNotFound · ModelNotFound
├── Conflict 409
├── PayloadTooLarge 413
├── QueueFull 429
├── Throttled 429
├── Unavailable 503 ── EndpointFailed · ColdWaitExceeded · BusUnavailable · Overloaded · WaitExceeded
├── ArtifactError 422 ── EmptySource · UnsupportedArtifact · IncompleteDownload · ArtifactChanged ·
│                        DigestMismatch · SourceUnreachable · DiskFull
├── EngineError 502 ── EngineStartFailed · ForkFailed · ProbeFailed · EngineDied · InvocationTimeout · PoisonRequest 422
├── RevisionConflict 409
├── LeaseLost 503
└── ConfigurationError (exit code 3)
"""

from __future__ import annotations

from typing import ClassVar


class StandbyError(Exception):
    """Base of every error that standby raises on purpose.

    ``message`` says what failed with the value and the limit; ``remedy`` says what to do; ``retry_after_s`` is set
    where a retry helps.
    """

    code: ClassVar[str] = "internal_error"
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, remedy: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}" if self.remedy else self.message


class InvalidInput(StandbyError):
    """The caller's input breaks a rule."""

    code = "invalid_request"
    http_status = 400
    exit_code = 2


class MalformedJson(InvalidInput):
    """The body is not JSON."""

    code = "malformed_json"


class VariantNotFound(InvalidInput):
    """The endpoint has no variant of that name."""

    code = "variant_not_found"


class ComponentRequired(InvalidInput):
    """The endpoint serves inference components, and the request names none."""

    code = "component_required"


class NotAuthenticated(StandbyError):
    """No key, or an unknown or revoked one."""

    code = "invalid_api_key"
    http_status = 401
    exit_code = 6


class Forbidden(StandbyError):
    """The key is good but may not do this."""

    code = "forbidden"
    http_status = 403
    exit_code = 6


class QuotaExceeded(Forbidden):
    """The tenant has as much as it may have."""

    code = "quota_exceeded"


class NotFound(StandbyError):
    """No such thing, or it belongs to somebody else: the two are never told apart."""

    code = "not_found"
    http_status = 404
    exit_code = 4


class EndpointNotFound(NotFound):
    """No endpoint of that name."""

    code = "endpoint_not_found"


class ModelNotFound(NotFound):
    """No model of that name or served id."""

    code = "model_not_found"


class Conflict(StandbyError):
    """The name is taken, or the thing is still in use."""

    code = "conflict"
    http_status = 409
    exit_code = 5


class PayloadTooLarge(StandbyError):
    """The body is larger than the limit."""

    code = "payload_too_large"
    http_status = 413
    exit_code = 2


class QueueFull(StandbyError):
    """The waiting room is full by count or by bytes."""

    code = "queue_full"
    http_status = 429
    exit_code = 7


class Throttled(StandbyError):
    """As many requests as the variant's concurrency limit allows are under way already."""

    code = "throttled"
    http_status = 429
    exit_code = 7


class Unavailable(StandbyError):
    """The platform cannot answer now, and a retry may help."""

    code = "unavailable"
    http_status = 503
    exit_code = 7


class EndpointFailed(Unavailable):
    """The endpoint's engine does not start; the message holds its own words."""

    code = "endpoint_failed"


class ColdWaitExceeded(Unavailable):
    """The activation took longer than the caller may wait; it goes on."""

    code = "model_not_ready"


class Overloaded(Unavailable):
    """The predicted wait is longer than the endpoint's latency target or the caller's limit allows."""

    code = "overloaded"


class WaitExceeded(Unavailable):
    """The request waited for as long as its priority may."""

    code = "wait_exceeded"


class BusUnavailable(Unavailable):
    """NATS does not answer."""

    code = "bus_unavailable"


class ArtifactError(StandbyError):
    """Base of everything that is wrong with model bytes."""

    code = "artifact_error"
    http_status = 422
    exit_code = 8


class EmptySource(ArtifactError):
    """The prefix or folder holds no object, or only empty ones."""

    code = "empty_source"


class UnsupportedArtifact(ArtifactError):
    """The bytes are no model that an engine can serve."""

    code = "unsupported_artifact"


class IncompleteDownload(ArtifactError):
    """The connection ended early; nothing partial is visible."""

    code = "incomplete_download"


class ArtifactChanged(ArtifactError):
    """The object is not the one that was registered."""

    code = "artifact_changed"


class DigestMismatch(ArtifactError):
    """The size is right and the bytes are not."""

    code = "digest_mismatch"


class SourceUnreachable(ArtifactError):
    """The store refuses or does not answer."""

    code = "source_unreachable"


class DiskFull(ArtifactError):
    """The artifact does not fit on the disk or under the cache's cap."""

    code = "disk_full"
    http_status = 507


class EngineError(StandbyError):
    """Base of everything that an engine process does wrong."""

    code = "engine_error"
    http_status = 502
    exit_code = 9


class EngineStartFailed(EngineError):
    """The engine process ended or stayed silent before it was ready."""

    code = "engine_start_failed"


class ForkFailed(EngineError):
    """The zygote did not give birth; a plain start may still succeed."""

    code = "fork_failed"


class ProbeFailed(EngineError):
    """The engine listens but cannot generate one token."""

    code = "probe_failed"


class EngineDied(EngineError):
    """The engine ended while it served."""

    code = "engine_died"


class InvocationTimeout(EngineError):
    """The engine had not answered when the limit of an invocation was reached; its work was ended."""

    code = "invocation_timeout"
    http_status = 504


class PoisonRequest(EngineError):
    """An engine has died of this very request; it is not given to another one for a while."""

    code = "poison_request"
    http_status = 422


class RevisionConflict(StandbyError):
    """Somebody else wrote the key first; read again and decide again."""

    code = "revision_conflict"
    http_status = 409
    exit_code = 5


class LeaseLost(StandbyError):
    """This controller is not the leader any more; nothing it decided may be written."""

    code = "lease_lost"
    http_status = 503


class ConfigurationError(StandbyError):
    """A setting or the machine is not fit; the remedy says how to mend it."""

    code = "configuration_error"
    exit_code = 3
