"""Bearer keys: what is accepted, what is stored, and that every refusal says the same."""

from __future__ import annotations

import pytest

from standby.domain.access import ApiKey, Role
from standby.domain.errors import InvalidInput, NotAuthenticated
from standby.gateway.keys import PREFIX, authenticate, generate, issue, record

PEPPER = b"pepper"
TENANT = "123456789012"


def an_issued_key() -> tuple[ApiKey, str]:
    return issue(tenant=TENANT, name="ci", pepper=PEPPER, now=1.0)


def test_an_issued_key_is_accepted_and_never_stored() -> None:
    key, secret = an_issued_key()

    assert authenticate(f"Bearer {secret}".encode(), {key.id: key}, PEPPER) is key
    assert authenticate(f"bearer {secret} ".encode(), {key.id: key}, PEPPER) is key
    assert secret.startswith(f"{PREFIX}{key.id}-")
    assert len(secret.rpartition("-")[2]) == 64
    assert secret.rpartition("-")[2] not in key.model_dump_json()


def test_two_keys_share_nothing() -> None:
    assert generate() != generate()


def test_every_refusal_says_the_same() -> None:
    """A caller cannot tell a missing, malformed, unknown, wrong or revoked key from another."""
    key, secret = an_issued_key()
    revoked, revoked_secret = an_issued_key()
    keys = {key.id: key, revoked.id: revoked.model_copy(update={"revoked_at": 2.0})}
    headers = [
        None,
        b"",
        b"Bearer ",
        b"Bearer x",
        f"Basic {secret}".encode(),
        f"Bearer {secret[:-1]}".encode(),
        f"Bearer {secret}0".encode(),
        f"Bearer {PREFIX}{key.id}-".encode(),
        f"Bearer {generate()}".encode(),
        f"Bearer {revoked_secret}".encode(),
        b"Bearer \xff\xfe",
        f"Bearer {secret}{'0' * 1000}".encode(),
    ]

    words = set()
    for header in headers:
        with pytest.raises(NotAuthenticated) as refusal:
            authenticate(header, keys, PEPPER)
        words.add(str(refusal.value))

    assert len(words) == 1


def test_another_pepper_voids_every_key() -> None:
    key, secret = an_issued_key()

    with pytest.raises(NotAuthenticated):
        authenticate(f"Bearer {secret}".encode(), {key.id: key}, b"another pepper")


def test_the_id_of_one_key_does_not_open_another() -> None:
    """The digest covers the whole key, so swapping the id in front of a good secret is refused."""
    mine, secret = an_issued_key()
    other, _ = issue(tenant="999999999999", name="other", pepper=PEPPER, now=1.0)
    forged = secret.replace(mine.id, other.id)

    with pytest.raises(NotAuthenticated):
        authenticate(f"Bearer {forged}".encode(), {mine.id: mine, other.id: other}, PEPPER)


@pytest.mark.parametrize("secret", ["", "sk-standby-", "sk-standby-abc", "sk-other-abc-def", "sk-standby-a b-c"])
def test_a_bootstrap_key_of_another_form_is_refused(secret: str) -> None:
    with pytest.raises(InvalidInput, match="sk-standby-<id>-<secret>"):
        record(secret, tenant=TENANT, name="bootstrap", role=Role.ADMIN, pepper=PEPPER, now=1.0)


@pytest.mark.parametrize("name", ["", "x" * 65, "two\nlines"])
def test_a_key_has_a_printable_name(name: str) -> None:
    with pytest.raises(InvalidInput, match="key name"):
        issue(tenant=TENANT, name=name, pepper=PEPPER, now=1.0)
