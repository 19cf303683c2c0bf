"""Unknown, revoked, expired, moved: what an access key's state means for a signature, and what is kept of its secret."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.credentials import Credentials

from standby.domain.access import AccessKey
from standby.host.sealing import SealingKey
from standby.sagemaker.auth.access_keys import reseal
from support.signed import NOW, SEALING, TENANT, World, bearer_token, refusal, signed


def test_unknown_revoked_disabled_and_wrong_token_are_one_refusal() -> None:
    world = World()
    unknown = Credentials("SBKAAAAAAAAAAAAAAAAA", "secret")
    revoked, revoked_pair = world.key()
    world.change(revoked, revoked_at=NOW)
    _, of_disabled = world.key(tenant="999999999999")
    world.disable("999999999999")
    _, standing = world.key()
    _, session = world.key(session=True)
    assert session.token is not None
    requests = [
        signed(unknown),
        signed(revoked_pair),
        signed(of_disabled),
        signed(Credentials(standing.access_key, standing.secret_key, "a token it does not have")),
        signed(Credentials(session.access_key, session.secret_key)),
        signed(Credentials(session.access_key, session.secret_key, session.token + "x")),
        signed(Credentials(session.access_key, session.secret_key, standing.secret_key)),
    ]

    errors = [refusal(lambda request=request: world.check(request)) for request in requests]  # type: ignore[misc]

    assert {(error.code, error.status, error.message) for error in errors} == {
        ("UnrecognizedClientException", 403, "The security token included in the request is invalid.")
    }


def test_as_much_is_computed_for_an_unknown_key_as_for_a_wrong_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same digests over texts of the same length, so that the time tells nothing."""
    from standby.sagemaker.auth import authenticator, canonical

    counted: list[str] = []
    for name in ("signing_key", "signature", "string_to_sign", "canonical_request", "sha256_hex"):
        original = getattr(canonical, name)

        def counting(*args: Any, original: Any = original, name: str = name) -> Any:
            counted.append(name)
            return original(*args)

        monkeypatch.setattr(authenticator, name, counting)
    world = World()
    _, session = world.key(session=True)
    world.check(signed(session))
    work = []
    for credentials in (Credentials("SBIAAAAAAAAAAAAAAAAA", "s", session.token), Credentials(session.access_key, "s", "t")):
        counted.clear()
        refusal(lambda credentials=credentials: world.check(signed(credentials)))  # type: ignore[misc]
        work.append(list(counted))

    assert work[0] == work[1]
    assert "signing_key" in work[0]


def test_an_expired_key_says_so_only_to_who_holds_its_secret() -> None:
    world = World()
    _, credentials = world.key(session=True, expires_at=NOW + 10)
    stranger = Credentials(credentials.access_key, "guessed", credentials.token)

    assert world.check(signed(credentials), now=NOW + 9).tenant == TENANT
    assert refusal(lambda: world.check(signed(credentials), now=NOW + 10)).code == "ExpiredTokenException"
    assert refusal(lambda: world.check(signed(stranger), now=NOW + 10)).code == "InvalidSignatureException"


def test_copies_that_are_too_old_are_believed_no_more() -> None:
    """A gateway that is cut off cannot hear of revocations (field case B44)."""
    world = World(age=60.0)
    _, credentials = world.key()
    request = signed(credentials)
    assert world.check(request).tenant == TENANT

    world.age = 60.1
    for act in (
        lambda: world.check(request),
        lambda: world.authenticator.authenticate_bearer(bearer_token(credentials), NOW),
        lambda: world.authenticator.authenticate_bearer("sk-standby-x-y", NOW),
    ):
        assert (refusal(act).code, refusal(act).status) == ("ServiceUnavailable", 503)


def test_opened_secrets_go_with_their_records() -> None:
    world = World()
    record, credentials = world.key()
    request = signed(credentials)
    world.check(request)
    assert len(world.vault) == 1

    world.change(record, revoked_at=NOW)
    assert len(world.vault) == 0
    assert refusal(lambda: world.check(request)).code == "UnrecognizedClientException"
    assert len(world.vault) == 0


def test_a_record_that_was_moved_or_sealed_elsewhere_opens_nothing(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    record, credentials = world.key()
    world.keys.put("SBKAAAAAAAAAAAAAAAAA", record)
    world.change(record, tenant="999999999999")
    moved = Credentials("SBKAAAAAAAAAAAAAAAAA", credentials.secret_key)

    for pair in (moved, credentials):
        assert refusal(lambda pair=pair: world.check(signed(pair))).code == "UnrecognizedClientException"  # type: ignore[misc]
    assert (
        refusal(lambda: World(sealing=None, keys=world.keys).check(signed(credentials))).code == "UnrecognizedClientException"
    )
    assert "cannot be opened" in caplog.text
    assert credentials.secret_key not in caplog.text


def test_previous_sealing_keys_open_until_records_are_sealed_again() -> None:
    old = World()
    record, credentials = old.key()
    fresh = SealingKey(bytes([1]) * 32, [SEALING])
    during = World(sealing=fresh, keys=old.keys)
    assert during.check(signed(credentials)).tenant == TENANT

    again = reseal(record, fresh)
    assert again is not None
    assert again.key_version == fresh.version
    after = World(sealing=SealingKey(bytes([1]) * 32))
    after.keys.put(again.id, again)
    assert after.check(signed(credentials)).tenant == TENANT
    assert reseal(again, SEALING) is None


def test_refusals_of_known_keys_are_told_without_a_secret() -> None:
    world = World()
    record, credentials = world.key()

    refusal(lambda: world.check(signed(Credentials(credentials.access_key, "x"))))
    refusal(lambda: world.check(signed(Credentials("nobody", "x"))))

    assert world.refusals == [(record.id, "InvalidSignatureException"), ("", "UnrecognizedClientException")]
    assert credentials.secret_key not in repr(world.vault.find(record.id))


def test_records_hold_no_secret() -> None:
    world = World()
    record, credentials = world.key(session=True)
    stored = record.encode()

    assert isinstance(record, AccessKey)
    assert credentials.token is not None
    for secret in (credentials.secret_key, credentials.token):
        assert secret.encode() not in stored
