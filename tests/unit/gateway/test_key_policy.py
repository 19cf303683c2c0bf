"""Which bearer keys count now: their end, their tenant, their scopes, and how old the copies are."""

from __future__ import annotations

import pytest

from standby.domain.access import ApiKey, Role, Scope, Tenant
from standby.domain.errors import ConfigurationError, Forbidden, NotAuthenticated, Unavailable
from standby.gateway.authn import check_trust
from standby.gateway.keys import KeyRing, authenticate, issue
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

    def check(self, scope: Scope | None = None) -> ApiKey:
        return authenticate(f"Bearer {self.secret}".encode(), self.ring, PEPPER, scope)


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


def test_copies_in_good_health_must_be_trusted() -> None:
    check_trust(75.0, 30.0)
    with pytest.raises(ConfigurationError, match="STANDBY_KEY_TRUST_S is 60"):
        check_trust(60.0, 30.0)
