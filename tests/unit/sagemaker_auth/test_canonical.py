"""Canonical requests and signatures against the vectors that AWS publishes, and against botocore's own code."""

from __future__ import annotations

import pytest
from botocore.utils import normalize_url_path
from hypothesis import given
from hypothesis import strategies as st

from standby.sagemaker.auth.canonical import (
    canonical_query,
    canonical_request,
    canonical_uri,
    normal_path,
    query_pairs,
    sha256_hex,
    signature,
    signing_key,
    string_to_sign,
)

SECRET = b"wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
HOST = {b"host": b"example.amazonaws.com", b"x-amz-date": b"20150830T123600Z"}
FORM = {**HOST, b"content-type": b"application/x-www-form-urlencoded"}

# Signature Version 4 test suite: name, method, path, query, headers, body, signature.
VECTORS = [
    ("get-vanilla", b"GET", b"/", b"", HOST, b"", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
    ("post-vanilla", b"POST", b"/", b"", HOST, b"", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
    (
        "get-vanilla-query-order-key-case",
        b"GET",
        b"/",
        b"Param2=value2&Param1=value1",
        HOST,
        b"",
        "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
    ),
    (
        "get-utf8",
        b"GET",
        "/ሴ".encode(),
        b"",
        HOST,
        b"",
        "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85",
    ),
    (
        "get-unreserved",
        b"GET",
        b"/-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
        b"",
        HOST,
        b"",
        "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f",
    ),
    (
        "post-x-www-form-urlencoded",
        b"POST",
        b"/",
        b"",
        FORM,
        b"Param1=value1",
        "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
    ),
]


@pytest.mark.parametrize(
    ("method", "path", "query", "headers", "body", "expected"), [row[1:] for row in VECTORS], ids=[row[0] for row in VECTORS]
)
def test_vectors_of_the_test_suite(
    method: bytes, path: bytes, query: bytes, headers: dict[bytes, bytes], body: bytes, expected: str
) -> None:
    canonical = canonical_request(
        method, canonical_uri(path), canonical_query(query_pairs(query)), headers, sorted(headers), sha256_hex(body)
    )
    text = string_to_sign("20150830T123600Z", "20150830/us-east-1/service/aws4_request", canonical)

    assert signature(signing_key(SECRET, "20150830", "us-east-1", "service"), text).decode() == expected


def test_the_documented_example_of_a_signing_key_and_a_signature() -> None:
    """IAM's ListUsers, step by step, in AWS's documentation."""
    headers = {
        b"content-type": b"application/x-www-form-urlencoded; charset=utf-8",
        b"host": b"iam.amazonaws.com",
        b"x-amz-date": b"20150830T123600Z",
    }
    query = canonical_query(query_pairs(b"Version=2010-05-08&Action=ListUsers"))
    canonical = canonical_request(b"GET", b"/", query, headers, sorted(headers), sha256_hex(b""))
    key = signing_key(SECRET, "20150830", "us-east-1", "iam")

    assert sha256_hex(canonical) == b"f536975d06c0309214f805bb90ccff089219ecd68b2577efef23edd43b7e1a59"
    assert key.hex() == "c4afb1cc5771d871763a393e44b703571b55cc28424d1a5e86da6ed3c154a4b9"
    text = string_to_sign("20150830T123600Z", "20150830/us-east-1/iam/aws4_request", canonical)
    assert signature(key, text) == b"5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7"


@given(st.text(alphabet="/.ab%2e~", max_size=12).map(lambda text: f"/{text}"))
def test_paths_are_made_normal_as_botocore_does(path: str) -> None:
    expected = normalize_url_path(path)

    if not path.endswith(("/.", "/..")):  # botocore leaves the last slash out there; AWS's own vectors do not have these
        assert normal_path(path.encode()) == expected.encode()
    assert normal_path(normal_path(path.encode())) == normal_path(path.encode())


def test_header_values_lose_their_spare_space() -> None:
    spread = canonical_request(b"GET", b"/", b"", {b"a": b"  x   y\t z "}, [b"a"], b"h")

    assert b"a:x y z\n" in spread
