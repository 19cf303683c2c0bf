"""Signatures of botocore are accepted, and whatever is changed afterwards is refused in AWS's words."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standby.domain.access import Scope
from support.signed import NOW, TENANT, Signed, World, refusal, signed

JSON = {"content-type": "application/x-amz-json-1.1", "x-amz-target": "SageMaker.DescribeEndpoint"}


MISMATCH = "The request signature we calculated does not match the signature you provided."


@pytest.mark.parametrize("session", [False, True])
@pytest.mark.parametrize("expires", [None, 60])
def test_what_botocore_signs_is_accepted(session: bool, expires: int | None) -> None:
    world = World()
    record, credentials = world.key(session=session, scopes=(Scope.INVOKE,))

    caller = world.check(signed(credentials, headers=JSON, expires=expires))

    assert (caller.tenant, caller.key_id, caller.scopes) == (TENANT, record.id, (Scope.INVOKE,))
    assert (caller.region, caller.admin, caller.arn) == ("eu-west-1", False, f"arn:aws:iam::{TENANT}:user/ci")


SEGMENT = st.text(alphabet="abzAZ09-_.~%+@ é", min_size=1, max_size=8).filter(lambda text: text.strip(".") != "")


@settings(deadline=None)
@given(
    path=st.lists(SEGMENT, max_size=3),
    query=st.dictionaries(st.text("abcAB-_", min_size=1, max_size=5), st.text("ab c&=+/é", max_size=6), max_size=4),
    value=st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30),
    body=st.binary(max_size=60),
)
def test_any_path_query_header_and_body_agrees_with_botocore(
    path: list[str], query: dict[str, str], value: str, body: bytes
) -> None:
    from urllib.parse import quote, urlencode

    world = World()
    _, credentials = world.key()
    url = "/" + "/".join(quote(segment, safe="") for segment in path) + (f"?{urlencode(query)}" if query else "")
    request = signed(credentials, path=url, body=body, headers={"x-amzn-sagemaker-custom-attributes": value})

    assert world.check(request).tenant == TENANT


def tampered(request: Signed) -> dict[str, Signed]:
    change = dataclasses.replace
    authorization = request.header("authorization")
    return {
        "method": change(request, method="PUT"),
        "path": change(request, path=b"/endpoints/b/invocations"),
        "path with dots that comes out the same": change(request, path=b"/x/../endpoints/a/invocations"),
        "path with a slash more": change(request, path=b"//endpoints/a/invocations"),
        "path that is encoded": change(request, path=b"/endpoints/%61/invocations"),
        "query": change(request, query=b"x=2"),
        "query more": change(request, query=b"x=1&y"),
        "query gone": change(request, query=b""),
        "body": change(request, body=request.body + b" "),
        "body gone": change(request, body=b""),
        "target": request.with_header("x-amz-target", b"SageMaker.DeleteEndpoint"),
        "target gone": request.with_header("x-amz-target", None),
        "content type": request.with_header("content-type", b"text/plain"),
        "host": request.with_header("host", b"other:1"),
        "date": request.with_header("x-amz-date", b"20260101T000001Z"),
        "signature": request.with_header("authorization", (authorization[:-1] + "x").encode()),
        "signature of nothing": request.with_header("authorization", authorization.rpartition("=")[0].encode() + b"=0"),
        "region": request.with_header("authorization", authorization.replace("eu-west-1", "us-east-1").encode()),
        "a signed header left out of the list": request.with_header(
            "authorization", authorization.replace("content-type;", "").encode()
        ),
    }


def test_every_change_after_signing_is_refused() -> None:
    world = World()
    _, credentials = world.key()
    request = signed(credentials, path="/endpoints/a/invocations?x=1", headers=JSON)
    assert world.check(request).tenant == TENANT

    for what, changed in tampered(request).items():
        error = refusal(lambda changed=changed: world.check(changed))  # type: ignore[misc]
        assert (error.code, error.status) == ("InvalidSignatureException", 403), what
        assert str(error.message).startswith(MISMATCH), what


@settings(deadline=None)
@given(st.data())
def test_no_changed_byte_of_anything_signed_is_accepted(data: st.DataObject) -> None:
    world = World()
    _, credentials = world.key()
    request = signed(credentials, path="/endpoints/a/invocations?x=1", headers=JSON, body=b'{"a":1}')
    part = data.draw(st.sampled_from(["path", "query", "body", "content-type", "x-amz-target", "host", "authorization"]))
    old = getattr(request, part) if part in {"path", "query", "body"} else request.header(part).encode()
    position = data.draw(st.integers(0, len(old) - 1))
    byte = data.draw(st.integers(33, 126).filter(lambda code: code != old[position]))
    new = old[:position] + bytes([byte]) + old[position + 1 :]
    changed = request.with_part(part, new) if part in {"path", "query", "body"} else request.with_header(part, new)

    assert refusal(lambda: world.check(changed)).status == 403


def test_a_presigned_request_is_as_strict() -> None:
    world = World()
    _, credentials = world.key(session=True)
    request = signed(credentials, method="GET", path="/endpoints/a?x=1", expires=60)
    assert world.check(request, now=NOW + 60).tenant == TENANT

    late = refusal(lambda: world.check(request, now=NOW + 61))
    assert (late.code, late.status) == ("InvalidSignatureException", 403)
    assert str(late.message).startswith("Signature expired: ")
    for old, new in ((b"x=1", b"x=2"), (b"X-Amz-Expires=60", b"X-Amz-Expires=61"), (b"eu-west-1", b"us-east-1")):
        assert old in request.query
        changed = dataclasses.replace(request, query=request.query.replace(old, new))
        assert refusal(lambda changed=changed: world.check(changed)).code == "InvalidSignatureException"  # type: ignore[misc]
    twice = dataclasses.replace(request, query=request.query + b"&X-Amz-Expires=60")
    assert refusal(lambda: world.check(twice)).code == "IncompleteSignature"
    with_body = dataclasses.replace(request, body=b"{}")
    assert refusal(lambda: world.check(with_body)).code == "InvalidSignatureException"
    longest = signed(credentials, expires=7 * 86_400 + 1)
    assert refusal(lambda: world.check(longest)).code == "IncompleteSignature"


@pytest.mark.parametrize(("offset", "accepted"), [(-300, True), (300, True), (-301, False), (301, False), (1200, False)])
def test_clocks_may_differ_by_five_minutes(offset: int, accepted: bool) -> None:
    world = World()
    _, credentials = world.key()
    request = signed(credentials, now=NOW + offset)

    if accepted:
        assert world.check(request).tenant == TENANT
        return
    error = refusal(lambda: world.check(request))
    assert (error.code, error.status) == ("InvalidSignatureException", 403)
    if offset < 0:
        assert error.message == (
            "Signature expired: 20251231T235459Z is now earlier than 20251231T235500Z (20260101T000000Z - 5 min.)"
        )
    else:
        assert str(error.message).startswith("Signature not yet current: ")


def test_inside_the_window_a_request_may_be_repeated() -> None:
    """As AWS allows it: SDKs repeat what they have signed."""
    world = World()
    _, credentials = world.key()
    request = signed(credentials)

    assert world.check(request) == world.check(request, now=NOW + 299)


@pytest.mark.parametrize(
    ("authorization", "code"),
    [
        (None, "MissingAuthenticationTokenException"),
        (b"Basic eHg=", "IncompleteSignature"),
        (b"AWS4-ECDSA-P256-SHA256 Credential=a", "IncompleteSignature"),
        (b"AWS4-HMAC-SHA256", "IncompleteSignature"),
        (b"AWS4-HMAC-SHA256 Credential=K/20260101/r/sagemaker/aws4_request, SignedHeaders=host", "IncompleteSignature"),
        (b"AWS4-HMAC-SHA256 Credential=K/20260101/r/sagemaker, SignedHeaders=host, Signature=0", "IncompleteSignature"),
        (b"AWS4-HMAC-SHA256 Credential=K/20260101/r/sagemaker/x, SignedHeaders=host, Signature=0", "InvalidSignatureException"),
        (
            b"AWS4-HMAC-SHA256 Credential=K/20260102/r/sagemaker/aws4_request, SignedHeaders=host;x-amz-date, Signature=0",
            "InvalidSignatureException",
        ),
        (
            b"AWS4-HMAC-SHA256 Credential=K/20260101/r/sagemaker/aws4_request, SignedHeaders=x-amz-date;host, Signature=0",
            "IncompleteSignature",
        ),
        (
            b"AWS4-HMAC-SHA256 Credential=K/20260101/r/sagemaker/aws4_request, SignedHeaders=x-amz-date, Signature=0",
            "InvalidSignatureException",
        ),
        (
            b"AWS4-HMAC-SHA256 Credential=K/20260101/r/s3/aws4_request, SignedHeaders=host;x-amz-date, Signature=0",
            "InvalidSignatureException",
        ),
        (
            b"AWS4-HMAC-SHA256 Credential=K/20260101/r/sagemaker/aws4_request, SignedHeaders=host;x-amz-date, Signature=\xff",
            "UnrecognizedClientException",
        ),
        (b"AWS4-HMAC-SHA256 Credential=a, Credential=b, SignedHeaders=host, Signature=0", "IncompleteSignature"),
    ],
)
def test_malformed_signatures_name_their_fault(authorization: bytes | None, code: str) -> None:
    world = World()
    _, credentials = world.key()
    request = signed(credentials).with_header("authorization", authorization)

    error = refusal(lambda: world.check(request))

    assert (error.code, error.status) == (code, 403)


@pytest.mark.parametrize(
    "date", [None, b"", b"20260101", b"2026-01-01T00:00:00Z", b"20261301T000000Z", b"\xb2\xb00260101T000000Z"]
)
def test_a_date_must_be_there_and_be_one(date: bytes | None) -> None:
    world = World()
    _, credentials = world.key()

    error = refusal(lambda: world.check(signed(credentials).with_header("x-amz-date", date)))

    assert (error.code, error.status) == ("IncompleteSignature", 403)


def test_headers_that_come_twice_are_refused() -> None:
    """Whichever of the two was checked, another part of the server could use the other one."""
    world = World()
    _, credentials = world.key()
    request = signed(credentials, headers=JSON)

    for name in ("authorization", "host", "x-amz-target", "x-amz-date", "content-type"):
        double = dataclasses.replace(request, headers=(*request.headers, (name.encode(), request.header(name).encode())))
        assert refusal(lambda double=double: world.check(double)).code == "InvalidSignatureException", name  # type: ignore[misc]
    harmless = dataclasses.replace(request, headers=(*request.headers, (b"via", b"a"), (b"via", b"b")))
    assert world.check(harmless).tenant == TENANT


@pytest.mark.parametrize("name", ["x-amz-target", "x-amz-security-token", "x-amzn-sagemaker-target-variant", "x-amz-meta"])
def test_an_amz_header_that_was_not_signed_is_refused(name: str) -> None:
    world = World()
    _, credentials = world.key()
    request = signed(credentials).with_header(name, b"x")

    error = refusal(lambda: world.check(request))

    assert error.code == "InvalidSignatureException"
    assert f"'{name}' must be a 'SignedHeader'" in str(error.message)
    assert world.check(signed(credentials).with_header("x-amzn-trace-id", b"Root=1")).tenant == TENANT


@pytest.mark.parametrize(
    ("value", "accepted"),
    [
        (None, True),
        ("44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a", True),
        ("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", False),
        ("UNSIGNED-PAYLOAD", False),
        ("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", False),
        ("STREAMING-UNSIGNED-PAYLOAD-TRAILER", False),
        ("", False),
    ],
)
def test_the_payload_is_always_hashed(value: str | None, accepted: bool) -> None:
    world = World()
    _, credentials = world.key()
    request = signed(credentials, body=b"{}", headers={} if value is None else {"X-Amz-Content-SHA256": value})

    if accepted:
        assert world.check(request).tenant == TENANT
    else:
        assert refusal(lambda: world.check(request)).code == "InvalidSignatureException"


def test_both_ways_at_once_are_refused() -> None:
    world = World()
    _, credentials = world.key()
    by_header, by_query = signed(credentials), signed(credentials, expires=60)
    both = dataclasses.replace(by_header, query=by_query.query)

    assert refusal(lambda: world.check(both)).code == "IncompleteSignature"


def test_another_service_is_refused_unless_any_is_right() -> None:
    world = World()
    _, credentials = world.key()
    request = signed(credentials, service="application-autoscaling")

    assert "'sagemaker'" in str(refusal(lambda: world.check(request)).message)
    assert world.check(request, service="application-autoscaling").tenant == TENANT
    assert world.check(request, service=None).tenant == TENANT


@pytest.mark.parametrize("life", ["0", "604801", "0000000060", "0000000001" + "9" * 20, "1" * 5000, "+60", "6_0", "٦٠"])
def test_a_presigned_life_is_a_plain_number_of_seven_days_at_most(life: str) -> None:
    """Zeros in front must not hide a longer life, and a number beyond any use must not end in an error of ours."""
    from standby.sagemaker.auth.claim import query_claim
    from standby.sagemaker.errors import AwsError

    world = World()
    _, credentials = world.key()
    query = signed(credentials, expires=60).query.replace(b"X-Amz-Expires=60", b"X-Amz-Expires=" + life.encode())

    with pytest.raises(AwsError, match="X-Amz-Expires must be a number"):
        query_claim(query)
