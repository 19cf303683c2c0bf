"""Which bearer keys count now: their end, their tenant, their scopes, and how old the copies are."""

from __future__ import annotations

import pytest

from standby.domain.access import ApiKey, Role, Scope, Tenant
from standby.domain.errors import ConfigurationError, Forbidden, NotAuthenticated, StandbyError, Unavailable
from standby.gateway.authn import check_trust
from standby.gateway.keys import KeyRing, Proofs, authenticate, issue, record
from support.signed import Records

PEPPER = b"pepper"
TENANT = "123456789012"


class World:
    def __init__(self, **how: object) -> None:
        self.keys, self.tenants = Records(), Records()
        self.now, self.age = 100.0, 0.0
        self.key, self.secret = issue(tenant=TENANT, name="ci", pepper=PEPPER, now=0.0, **how)  # type: ignore[arg-type]
        self.keys.put(self.key.id, self.key)
        self.ring = KeyRing(self.keys, self.tenants, now=lambda: self.now, staleness=lambda: self.age, trust_s=60.0)
        self.proofs = Proofs()

    def check(self, scope: Scope | None = None) -> ApiKey:
        """Check the key twice: by its HMAC, and as the gateway's data routes do, who may have seen it before."""
        header = f"Bearer {self.secret}".encode()
        proved = _told(header, self.ring, scope, self.proofs)
        plainly = _told(header, self.ring, scope, None)
        assert (type(proved), str(proved)) == (type(plainly), str(plainly))
        if isinstance(proved, Exception):
            raise proved
        return proved


def _told(header: bytes, ring: KeyRing, scope: Scope | None, proofs: Proofs | None) -> ApiKey | Exception:
    try:
        return authenticate(header, ring, PEPPER, scope, proofs)
    except StandbyError as error:
        return error


def test_a_key_ends_at_its_end() -> None:
    world = World(expires_at=200.0)
    world.now = 199.9
    assert world.check() == world.key

    world.now = 200.0
    with pytest.raises(NotAuthenticated):
        world.check()


def test_a_disabled_tenants_key_is_like_an_unknown_one() -> None:
    world = World(role=Role.ADMIN)
    world.tenants.put(TENANT, Tenant(id=TENANT, created_at=0.0))
    assert world.check() == world.key

    world.tenants.put(TENANT, Tenant(id=TENANT, created_at=0.0, disabled_at=1.0))
    with pytest.raises(NotAuthenticated):
        world.check()


def test_a_key_is_for_its_scopes_only() -> None:
    world = World(scopes=(Scope.INVOKE,))

    assert world.check(Scope.INVOKE) == world.check() == world.key
    with pytest.raises(Forbidden, match="not for control"):
        world.check(Scope.CONTROL)


def test_old_copies_let_nobody_in_and_say_why() -> None:
    """A gateway that is cut off cannot hear of revocations (field case B44)."""
    world = World()
    world.age = 60.0
    assert world.check() == world.key

    world.age = 60.1
    with pytest.raises(Unavailable, match="more than 60 s"):
        world.check()


def test_a_proof_outlives_neither_a_revocation_nor_another_key_of_the_same_id() -> None:
    world = World()
    assert world.check() == world.key

    world.keys.put(world.key.id, world.key.model_copy(update={"revoked_at": 50.0}))
    with pytest.raises(NotAuthenticated):
        world.check()

    other = f"{world.secret[:-1]}{'0' if world.secret[-1] != '0' else '1'}"
    world.keys.put(world.key.id, record(other, tenant=TENANT, name="ci", role=Role.TENANT, pepper=PEPPER, now=0.0))
    with pytest.raises(NotAuthenticated):
        world.check()
    world.secret = other
    assert world.check().id == world.key.id


def test_proofs_hold_no_secret_and_only_what_proved_right() -> None:
    world, stranger = World(), World()
    stranger.ring, stranger.proofs = world.ring, world.proofs
    with pytest.raises(NotAuthenticated):
        stranger.check()
    world.check()

    kept = repr(vars(world.proofs))
    assert world.key.id in kept
    assert stranger.key.id not in kept
    assert world.secret.rpartition("-")[2] not in kept


def test_copies_in_good_health_must_be_trusted() -> None:
    check_trust(75.0, 30.0)
    with pytest.raises(ConfigurationError, match="STANDBY_KEY_TRUST_S is 60"):
        check_trust(60.0, 30.0)
