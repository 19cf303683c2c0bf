"""Spans to a collector by OTLP over HTTP: the messages are OpenTelemetry's own (the extra ``otlp``), imported where needed.

They are filled in directly: by way of the SDK's spans and its encoder each cost five times as much processor time, which the
requests beside it pay. Source: https://opentelemetry.io/docs/specs/otlp/#otlphttp
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import httpx

from standby.domain.errors import ConfigurationError
from standby.telemetry.spans import Attribute, Span, SpanKind

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

LIMIT_S: Final = 5.0

_REMEDY: Final = "pip install 'standby[otlp]', or unset STANDBY_OTLP_ENDPOINT"
_PROTOBUF: Final = "application/x-protobuf"
# Of an answer nothing is wanted but how many spans were refused: a larger one is none.
_LONGEST_ANSWER: Final = 64 * 1024
_REMEMBERED: Final = 4096
_KINDS: Final = {SpanKind.INTERNAL: 1, SpanKind.SERVER: 2, SpanKind.CLIENT: 3, SpanKind.CONSUMER: 5}
_ERROR: Final = 2
_INT_BITS: Final = 64
# Flags of a span and of a link: sampled; whether its parent is another process's is known; it is.
_SAMPLED, _KNOWN, _REMOTE = 0x1, 0x100, 0x200


class Exporter:
    """Sends batches of spans, one request each. ``export`` blocks for seconds: it is for a thread of its own."""

    def __init__(self, url: str, headers: Mapping[str, str], resource: Mapping[str, str], *, limit_s: float = LIMIT_S) -> None:
        """``resource`` are the attributes of this process; ``limit_s``: how long the collector may be silent.

        Raises ConfigurationError where the packages are missing.
        """
        try:
            from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service  # noqa: PLC0415 - see the top
            from opentelemetry.proto.common.v1 import common_pb2 as common  # noqa: PLC0415
            from opentelemetry.proto.resource.v1 import resource_pb2  # noqa: PLC0415
            from opentelemetry.proto.trace.v1 import trace_pb2 as messages  # noqa: PLC0415
        except ImportError as error:
            raise ConfigurationError(
                f"STANDBY_OTLP_ENDPOINT is {url!r}, and what spans are encoded with is not installed ({error})", remedy=_REMEDY
            ) from error
        self._url = url
        self._headers = {**headers, "content-type": _PROTOBUF}
        self._limit_s = limit_s
        self._client: httpx.Client | None = None
        self._service: Any = service
        self._messages: Any = messages
        pairs = _Pairs(common, messages)
        # Most attributes come again and again: names of tenants, instances, routes.
        self._attribute: Callable[[str, Attribute], bytes] = lru_cache(_REMEMBERED, typed=True)(pairs.encoded)
        self._resource = resource_pb2.Resource(attributes=[pairs.pair(name, value) for name, value in resource.items()])
        self._scope = common.InstrumentationScope(name="standby", version=resource.get("service.version", ""))

    def export(self, spans: Sequence[Span]) -> int:
        """Send them and return how many the collector has taken; those that it has not are lost."""
        try:
            refused = self._send(self.encoded(spans))
        except (httpx.HTTPError, httpx.InvalidURL):
            return 0
        return 0 if refused is None else max(0, len(spans) - refused)

    def encoded(self, spans: Sequence[Span]) -> bytes:
        """Return one request's body."""
        messages = self._messages
        scope = messages.ScopeSpans(scope=self._scope, spans=[self._encoded(span) for span in spans])
        resource = messages.ResourceSpans(resource=self._resource, scope_spans=[scope])
        body: bytes = self._service.ExportTraceServiceRequest(resource_spans=[resource]).SerializeToString()
        return body

    def _send(self, body: bytes) -> int | None:
        """Return how many of the spans were refused; None: all. Raises httpx.HTTPError."""
        try:
            return self._sent(body)
        except (httpx.RemoteProtocolError, httpx.ReadError):
            # A kept connection that the collector had closed looks like this; a fresh one does not.
            return self._sent(body)

    def _sent(self, body: bytes) -> int | None:
        if self._client is None:
            self._client = httpx.Client(timeout=self._limit_s, headers=self._headers)
        with self._client.stream("POST", self._url, content=body) as answer:
            length = answer.headers.get("content-length", "")
            known = length.isdecimal() and int(length) <= _LONGEST_ANSWER
            said = answer.read() if known else b""
        if not answer.is_success:
            return None
        try:
            return int(self._service.ExportTraceServiceResponse.FromString(said).partial_success.rejected_spans)
        except ValueError:  # the library's error of a message that is none; it has said that it took them
            return 0

    def _encoded(self, span: Span) -> Any:
        encoded = self._messages.Span(
            trace_id=span.trace.to_bytes(16),
            span_id=span.id.to_bytes(8),
            parent_span_id=span.parent.to_bytes(8) if span.parent else b"",
            flags=_SAMPLED | _KNOWN | (_REMOTE if span.kind is SpanKind.SERVER else 0),
            name=span.name,
            kind=_KINDS[span.kind],
            start_time_unix_nano=span.began_ns,
            end_time_unix_nano=span.ended_ns,
        )
        attributes = [self._attribute(name, value) for name, value in span.attributes.items()]
        if span.error:
            attributes.append(self._attribute("error.type", span.error))
            encoded.status.code = _ERROR
        # Merged as bytes: to copy as many messages takes five times as long.
        encoded.MergeFromString(b"".join(attributes))
        for event in span.events:
            encoded.events.add(name=event.name, time_unix_nano=event.at_ns)
        for link in span.links:
            flags = link.flags | _KNOWN | _REMOTE
            encoded.links.add(trace_id=link.trace.to_bytes(16), span_id=link.span.to_bytes(8), flags=flags)
        return encoded


class _Pairs:
    """Makes attributes."""

    def __init__(self, common: Any, messages: Any) -> None:
        self._common = common
        self._messages = messages

    def encoded(self, name: str, value: Attribute) -> bytes:
        """Return a span that has nothing but this attribute, in bytes: merged into another one, it gets it too."""
        encoded: bytes = self._messages.Span(attributes=[self.pair(name, value)]).SerializeToString()
        return encoded

    def pair(self, name: str, value: Attribute) -> KeyValue:
        """Return the attribute as a message."""
        common = self._common
        if isinstance(value, bool):
            held = common.AnyValue(bool_value=value)
        elif isinstance(value, int) and value.bit_length() < _INT_BITS:
            held = common.AnyValue(int_value=value)
        elif isinstance(value, float):
            held = common.AnyValue(double_value=value)
        else:
            # An engine may count 10^30 tokens, and half a surrogate is text in JSON: neither may cost the batch it is in.
            held = common.AnyValue(string_value=str(value).encode(errors="replace").decode())
        pair: KeyValue = common.KeyValue(key=name, value=held)
        return pair
