"""Every subject, stream and bucket name, once."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from standby.domain.events import Event

DEMAND: Final = "demand"
BEAT: Final = "beat"
COMMAND: Final = "command"
TRACES: Final = "traces"
POISON: Final = "poison"
OUTLOOK: Final = "outlook"
EVENTS: Final = "events"
HAPPENED: Final = "happened"
CHANGED: Final = "changed"
WORK: Final = "work"

ALL_DEMAND: Final = f"{DEMAND}.>"
ALL_BEATS: Final = f"{BEAT}.*"
ALL_OUTLOOKS: Final = f"{OUTLOOK}.*.*"
ALL_EVENTS: Final = f"{EVENTS}.>"

EVENTS_STREAM: Final = EVENTS

# Stands in a subject where an event names no tenant or no endpoint: a token may not be empty.
NOBODY: Final = "_"


class Bucket(StrEnum):
    """One key-value bucket for each table."""

    KEYS = "keys"
    MODELS = "models"
    ENDPOINT_CONFIGS = "endpoint_configs"
    ENDPOINTS = "endpoints"
    ASSIGNMENTS = "assignments"
    INSTANCES = "instances"
    NODES = "nodes"
    LEASES = "leases"
    CREDENTIALS = "credentials"
    PRICES = "prices"
    TENANTS = "tenants"
    ACCESS_KEYS = "access_keys"
    AWS = "aws"
    TICKETS = "tickets"
    HABITS = "habits"


def demand_subject(tenant: str, endpoint: str) -> str:
    """Where a gateway says that an endpoint is asked for (a ``Demand``)."""
    return f"{DEMAND}.{tenant}.{endpoint}"


def beat_subject(gateway: str) -> str:
    """Where a gateway sends its ``GatewayBeat``."""
    return f"{BEAT}.{gateway}"


def command_subject(node: str) -> str:
    """Where a node takes orders (a ``CacheOrder``) and answers them."""
    return f"{COMMAND}.{node}"


def mode_subject(node: str) -> str:
    """Where a node is told what it may take (a ``NodeOrder``)."""
    return f"{COMMAND}.{node}.mode"


def logs_subject(node: str) -> str:
    """Where a node is asked for its engines' logs (a ``LogOrder``)."""
    return f"{COMMAND}.{node}.logs"


def profile_subject(node: str) -> str:
    """Where a node is told to profile its engines (a ``ProfileOrder``)."""
    return f"{COMMAND}.{node}.profile"


def outlook_subject(tenant: str, endpoint: str) -> str:
    """Where the leading controller answers what it means to do with an endpoint (an ``Outlook``)."""
    return f"{OUTLOOK}.{tenant}.{endpoint}"


def traces_subject(gateway: str) -> str:
    """Where a gateway answers what it knows of past requests."""
    return f"{TRACES}.{gateway}"


def event_subject(event: Event) -> str:
    """``events.<tenant>.<endpoint>.<kind>``, with ``_`` for what the event does not name."""
    kind = getattr(event, "kind", NOBODY)
    return f"{EVENTS}.{event.tenant or NOBODY}.{event.endpoint or NOBODY}.{kind}"


def event_filter(tenant: str = "", endpoint: str = "", kind: str = "") -> str:
    """The subjects of one tenant's, one endpoint's, or all events, of one kind or all."""
    return f"{EVENTS}.{tenant or '*'}.{endpoint or '*'}.{kind or '*'}"


def happened_filter(tenant: str = "", endpoint: str = "", kind: str = "") -> str:
    """Where the server repeats the *stored* events of one tenant, one endpoint, or all, with their positions."""
    return HAPPENED + event_filter(tenant, endpoint, kind).removeprefix(EVENTS)


def bucket_stream(bucket: str) -> str:
    """The stream under a bucket, as every NATS client names it."""
    return f"KV_{bucket}"


def key_subject(bucket: str, key: str) -> str:
    """Where a key's value is stored; ``key`` may end with ``>``."""
    return f"$KV.{bucket}.{key}"


def changed_subject(bucket: str, key: str) -> str:
    """Where the server repeats what a bucket has *stored*, with its revision; ``key`` may end with ``>``."""
    return f"{CHANGED}.{bucket}.{key}"


def work_subject(queue: str, lane: str) -> str:
    """Where the items of a lane of a work queue are put; ``lane`` may be ``>``."""
    return f"{WORK}.{queue}.{lane}"


def work_stream(queue: str) -> str:
    """The stream under a work queue."""
    return f"{WORK}_{queue}"
