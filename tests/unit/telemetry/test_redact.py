"""No secret in a log line, whatever part of it carries it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st
from pydantic import SecretStr

from standby.domain.settings import Settings
from standby.gateway.keys import generate
from standby.telemetry import redact
from standby.telemetry.logs import HumanFormatter, JsonFormatter
from standby.telemetry.redact import mask, masked_value, may_hold_secrets, secrets_of
from standby.telemetry.tracing_settings import TracingSettings

KEY = generate()
PLAIN = "correct-horse-battery"
SIGNED = "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20261130/us-east-1/sagemaker/aws4_request, Signature=" + "ab" * 32
QUERY = "https://h/?X-Amz-Signature=" + "cd" * 32 + "&X-Amz-Security-Token=FwoGZXIvYXdzE&X-Amz-Date=20261130T000000Z"


FRAGMENTS = [
    "Bearer abcdef123",
    "AUTHORIZATION: basic dXNlcg==",
    "AWS4-HMAC-SHA256 x",
    "signature=abcdefgh1",
    "Apikey: abcd",
    "a_ToKeN=abcd",
    "PASSWD='abcd'",
    "pepper:abcd",
    "ftp://a:b@c",
    "sk-abcdefghijklmno",
    "hf_abcdefghijklmno",
    "ASIAABCDEFGHIJKLMN",
    "\u017fecret=abcdef",
    "tokens token=abcd",
    "",
]


@pytest.fixture(autouse=True)
def given() -> Iterator[None]:
    """This process was given one secret that has no form to know it by."""
    before = list(redact._given)
    redact.hide([PLAIN, "short"])
    yield
    redact._given[:] = before


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        (f"key {KEY} is revoked", "key **** is revoked"),
        (f"Authorization: Bearer {KEY}", "Authorization: Bearer ****"),
        ("authorization: Basic dXNlcjpwYXNz", "authorization: Basic ****"),
        ("basic information", "basic information"),
        (f"got {SIGNED}", "got AWS4-HMAC-SHA256 ****"),
        (QUERY, "https://h/?X-Amz-Signature=****&X-Amz-Security-Token=****&X-Amz-Date=20261130T000000Z"),
        ("x-standby-token: n0detoken", "x-standby-token: ****"),
        ("(b'x-standby-token', b'x')", "(b'x-standby-token', b'x')"),
        ("STANDBY_KEY_PEPPER=abcdef", "STANDBY_KEY_PEPPER=****"),
        ("sagemaker-api-key-c2FnZW1ha2Vy", "****"),
        (f"refused {PLAIN}!", "refused ****!"),
        ("a short word", "a short word"),
        ("waited 12.5 ms for 30 tokens", "waited 12.5 ms for 30 tokens"),
    ],
)
def test_secrets_are_known_by_form_by_name_and_by_heart(text: str, masked: str) -> None:
    assert mask(text) == masked


@for_all(st.text(max_size=60), st.sampled_from(FRAGMENTS), st.text(max_size=60))
def test_what_is_masked_has_been_suspected(before: str, fragment: str, after: str) -> None:
    """A line that nobody suspects is written as it is."""
    text = f"{before}{fragment}{after}"
    suspected = may_hold_secrets(text)
    for secret in redact._given:
        assert suspected or secret not in text
    for pattern in redact._SECRETS:
        assert suspected or pattern.search(text) is None, pattern


@pytest.mark.parametrize(
    "text", ["request ended: ok", "prompt_tokens=12 completion_tokens=7", "node n1 is ready door=127.0.0.1:1"]
)
def test_ordinary_lines_are_not_suspected(text: str) -> None:
    assert not may_hold_secrets(text)


@pytest.mark.parametrize(
    "text",
    [
        "token " + "a" * 1_000_000,
        "token" * 200_000,
        "://" + "a-" * 500_000,
        "secret" + " " * 1_000_000,
        "authorization " * 70_000 + "basic",
        "x://" + "b" * 500_000 + ":" + "c" * 500_000,
    ],
    ids=lambda text: text[:12],
)
def test_a_megabyte_that_looks_like_secrets_is_masked_in_linear_time(text: str) -> None:
    """An engine's error may quote a request: with a pattern that goes back over it, this test would take hours."""
    assert mask(text) == text


def test_a_given_secret_is_known_in_json_too() -> None:
    redact.hide(['quote"d-secret-wörd'])
    assert may_hold_secrets(json.dumps({"x": 'quote"d-secret-wörd'}))
    assert mask(json.dumps({"x": 'a quote"d-secret-wörd'})) == '{"x": "a ****"}'


def test_values_are_masked_by_their_names_and_in_depth() -> None:
    value = {"door": "h:1", "token": "abc", "inner": [KEY, {"api_key": ["x"], "count": 3}], "ok": True}
    assert masked_value("extra", value) == {
        "door": "h:1",
        "token": "****",
        "inner": ["****", {"api_key": "****", "count": 3}],
        "ok": True,
    }
    assert masked_value("prompt_tokens", 12) == 12
    deep: Any = "end"
    for _ in range(20):
        deep = [deep]
    assert "****" in str(masked_value("deep", deep))


def test_a_settings_objects_secrets_are_found() -> None:
    class Some(Settings):
        plain: str = "x"
        one: SecretStr | None = None
        other: SecretStr = SecretStr("")

    assert secrets_of(Some(one=SecretStr("first second"), other=SecretStr("third"))) == ["first", "second", "third"]
    assert secrets_of(Some()) == []


@pytest.mark.parametrize("formatter", [JsonFormatter("t"), HumanFormatter("t")])
def test_no_part_of_a_record_carries_one(formatter: logging.Formatter) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    log = logging.Logger("apart")  # noqa: LOG001 - no handler of the test runner may get these records
    log.addHandler(handler)
    log.warning("direct %s", KEY, extra={"header": f"Bearer {KEY}", "nested": {"k": [PLAIN]}, "token": "abcdefgh"})
    log.warning(f"formatted {KEY}")  # noqa: G004 - what a library may do
    try:
        _break()
    except RuntimeError:
        log.exception("it broke", stack_info=True)
    log.warning("too few %s %s", KEY)  # noqa: PLE1206 - what a library may get wrong
    text = stream.getvalue()
    assert text.count("****") >= 8
    for secret in (KEY, PLAIN, "ab" * 32, "abcdefgh", "AKIAIOSFODNN7EXAMPLE"):
        assert secret not in text
    assert "RuntimeError" in text
    assert "too few" in text
    if isinstance(formatter, JsonFormatter):
        lines = [json.loads(line) for line in text.splitlines()]
        assert lines[0]["nested"] == {"k": ["****"]}
        assert "Traceback" in lines[2]["exception"]


def _break() -> None:
    raise RuntimeError(f"outer {KEY} {PLAIN}") from ValueError(f"inner {SIGNED}")


def test_each_value_of_a_list_of_headers_is_hidden_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector that refuses may repeat a header's value without its name; schemes and names are no secrets."""
    monkeypatch.setattr(redact, "_given", [])
    headers = SecretStr("x-team=qwe123, authorization=Bearer hush-hush,tenant=abc,x-sign=a=b=c==")
    redact.hide(secrets_of(TracingSettings(otlp_headers=headers)))

    told = "no qwe123 here; Bearer is a scheme, hush-hush, abc, a=b=c==, x-team, authorization"
    assert mask(told) == "no **** here; Bearer is a scheme, ****, abc, ****, x-team, authorization"
