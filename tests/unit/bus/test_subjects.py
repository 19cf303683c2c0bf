"""Subjects and keys: what goes where."""

from __future__ import annotations

import pytest

from standby.bus import subjects
from standby.bus.tables import check_key, wildcard
from standby.domain.errors import InvalidInput
from standby.domain.events import ComponentNotice


def test_an_event_without_tenant_or_endpoint_still_has_four_tokens() -> None:
    event = ComponentNotice(id="1", at=0.0, source="node/n1", message="started")
    assert subjects.event_subject(event) == "events._._.notice"
    assert subjects.event_subject(event.model_copy(update={"tenant": "t", "endpoint": "e"})) == "events.t.e.notice"


@pytest.mark.parametrize(
    ("tenant", "endpoint", "stored", "repeated"),
    [
        ("", "", "events.*.*.*", "happened.*.*.*"),
        ("t", "", "events.t.*.*", "happened.t.*.*"),
        ("t", "e", "events.t.e.*", "happened.t.e.*"),
    ],
)
def test_event_filters(tenant: str, endpoint: str, stored: str, repeated: str) -> None:
    assert subjects.event_filter(tenant, endpoint) == stored
    assert subjects.happened_filter(tenant, endpoint) == repeated


def test_no_stream_takes_what_another_repeats() -> None:
    """A repeated message that a stream stored again would go round for ever."""
    stored = {"$KV", subjects.EVENTS, subjects.WORK}
    repeated = {subjects.CHANGED, subjects.HAPPENED}
    core = {subjects.DEMAND, subjects.BEAT}
    assert len(stored | repeated | core) == len(stored) + len(repeated) + len(core)


@pytest.mark.parametrize(("prefix", "pattern"), [("", ">"), ("n", ">"), ("n1.", "n1.>"), ("n1.a", "n1.>"), ("a.b.c", "a.b.>")])
def test_the_narrowest_pattern_that_covers_a_prefix(prefix: str, pattern: str) -> None:
    assert wildcard(prefix) == pattern


@pytest.mark.parametrize("key", ["a", "000000000000.chat", "n1.chat-0", "x/y=z_w"])
def test_legal_keys(key: str) -> None:
    assert check_key(key) == key


@pytest.mark.parametrize("key", ["", "a.", ".a", "a..b", "a b", "a.*", ">", "ü", "a\n"])
def test_illegal_keys(key: str) -> None:
    with pytest.raises(InvalidInput):
        check_key(key)
