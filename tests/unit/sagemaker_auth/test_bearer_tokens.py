"""SageMaker's bearer tokens and our own bearer keys, and whom each acts for."""

from __future__ import annotations

import pytest
from botocore.credentials import Credentials

from standby.domain.access import ApiKey, Role, Scope
from support.signed import NOW, TENANT, World, bearer_token, refusal


@pytest.mark.parametrize("session", [False, True])
def test_sagemakers_bearer_token_is_its_keys(session: bool) -> None:
    world = World()
    record, credentials = world.key(session=session)

    caller = world.authenticator.authenticate_bearer(bearer_token(credentials), NOW + 43_200)

    assert (caller.tenant, caller.key_id, caller.region) == (TENANT, record.id, "us-east-1")


def test_bearer_tokens_of_any_other_make_are_refused() -> None:
    world = World()
    _, credentials = world.key()
    good = bearer_token(credentials)
    tokens = [
        good[:-4],
        good + "!",
        "sagemaker-api-key-",
        "sagemaker-api-key-AAAA",
        "sagemaker-api-key-" + "A" * 10_000,
        bearer_token(credentials, action="Another"),
        bearer_token(credentials, service="s3"),
        bearer_token(credentials, method="GET"),
        bearer_token(credentials, host="sagemaker.example.com"),
        bearer_token(credentials, version="&Version=2"),
        bearer_token(credentials, version="&Version=1&X-Amz-Expires=43200"),
        bearer_token(credentials, expires=43_201),
        bearer_token(Credentials(credentials.access_key, "x")),
        bearer_token(Credentials("nobody", "x")),
        bearer_token(credentials, now=NOW - 43_201),
        bearer_token(credentials, now=NOW + 301),
    ]

    for token in tokens:
        assert refusal(lambda token=token: world.authenticator.authenticate_bearer(token, NOW)).status == 403, token  # type: ignore[misc]


def test_our_own_bearer_keys_are_callers_too() -> None:
    world = World()
    world.own["sk-standby-a-b"] = ApiKey(
        id="a", tenant=TENANT, name="n", role=Role.ADMIN, digest="", created_at=0, scopes=(Scope.INVOKE,)
    )

    caller = world.authenticator.authenticate_bearer("sk-standby-a-b", NOW)

    assert (caller.tenant, caller.key_id, caller.admin, caller.scopes) == (TENANT, "a", True, (Scope.INVOKE,))
    assert refusal(lambda: world.authenticator.authenticate_bearer("sk-standby-a-c", NOW)).code == "UnrecognizedClientException"
    denied = refusal(lambda: caller.require(Scope.CONTROL, "sagemaker:CreateModel", "arn:x"))
    assert (denied.code, denied.status) == ("AccessDeniedException", 400)
    assert denied.message == (
        f"User: {caller.arn} is not authorized to perform: sagemaker:CreateModel on resource: arn:x because no "
        "identity-based policy allows the sagemaker:CreateModel action"
    )
