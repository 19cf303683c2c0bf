"""Keys for a store, found as the AWS SDK finds them: environment, profile, web identity, container, machine role."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from standby.domain.errors import SourceUnreachable
from standby.domain.model import SourceOptions

if TYPE_CHECKING:
    from obstore.store import S3Credential

_MACHINE_ROLE: Final = "iam-role"
_METADATA_TIMEOUT_S: Final = 1
# Botocore renews keys that have less than a quarter of an hour left, so that what it hands out lives longer than this.
_FRESH_FOR: Final = timedelta(minutes=5)


@dataclass(frozen=True)
class Credentials:
    """One pair of keys, and the token that temporary ones come with."""

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


def require_opened(credentials: Credentials | None, options: SourceOptions, purpose: str) -> None:
    """Raise SourceUnreachable where ``options`` name stored credentials and none are given; ``purpose`` begins the message.

    Never the process's own keys instead: they may open what the tenant's do not.
    """
    if options.credentials is not None and credentials is None:
        raise SourceUnreachable(
            f"{purpose} with the stored credentials {options.credentials!r}, which were not opened here",
            remedy=f"store the credentials {options.credentials!r} again",
        )


class FixedKeys:
    """Hands out one pair of keys; obstore itself would mix in those of the process."""

    def __init__(self, keys: Credentials) -> None:
        self._keys = keys

    def __call__(self) -> S3Credential:
        """Return the keys as obstore wants them."""
        return {
            "access_key_id": self._keys.access_key,
            "secret_access_key": self._keys.secret_key,
            "token": self._keys.session_token,
            "expires_at": None,
        }


class FoundKeys:
    """Hands out what botocore found, renewed by botocore when it runs out."""

    def __init__(self, found: Any) -> None:  # botocore has no types
        self._found = found

    def __call__(self) -> S3Credential:
        """Return the keys that are good now; may ask a service, and blocks for that long."""
        now = self._found.get_frozen_credentials()
        # Only keys that can run out know when they do.
        renewable = hasattr(self._found, "refresh_needed")
        return {
            "access_key_id": now.access_key,
            "secret_access_key": now.secret_key,
            "token": now.token,
            "expires_at": datetime.now(UTC) + _FRESH_FOR if renewable else None,
        }


KeyProvider = FixedKeys | FoundKeys


def find_keys(
    place: str, *, credentials: Credentials | None, environment: Mapping[str, str] | None, at_amazon: bool
) -> KeyProvider:
    """Return who hands out the keys for ``place`` (in words): the caller's, else the environment's, else the SDK's.

    An ``environment`` that is handed in is all there is: neither profiles nor machine roles are asked then. Blocking:
    asking a container or a machine for its role takes up to a second. Raises SourceUnreachable.
    """
    if credentials is not None:
        return FixedKeys(credentials)
    env = os.environ if environment is None else environment
    if env.get("AWS_ACCESS_KEY_ID"):
        return FixedKeys(
            Credentials(env["AWS_ACCESS_KEY_ID"], env.get("AWS_SECRET_ACCESS_KEY", ""), env.get("AWS_SESSION_TOKEN") or None)
        )
    found = _ask_sdk(place, at_amazon=at_amazon) if environment is None else None
    if found is None:
        raise SourceUnreachable(
            f"no credentials for {place}: AWS_ACCESS_KEY_ID is not set, and no profile or role was found",
            remedy="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or register the source as anonymous",
        )
    return FoundKeys(found)


def default_region(environment: Mapping[str, str] | None) -> str | None:
    """Return the region of the environment, else of the profile in use, else None."""
    env = os.environ if environment is None else environment
    named = env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION")
    if named or environment is not None or not _has_profile(env):
        return named
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415 # see _ask_sdk
    from botocore.session import Session  # noqa: PLC0415 # see _ask_sdk

    try:
        found = Session().get_config_variable("region")
    except BotoCoreError as error:
        raise _unusable("the region", error) from None
    return found if isinstance(found, str) and found else None


def _has_profile(env: Mapping[str, str]) -> bool:
    """Botocore takes a tenth of a second to load, for nothing where there is no file that it could read."""
    home = env.get("HOME", "")
    return bool(env.get("AWS_PROFILE") or env.get("AWS_CONFIG_FILE")) or os.path.exists(f"{home}/.aws/config")  # noqa: PTH110


def _ask_sdk(place: str, *, at_amazon: bool) -> Any:  # botocore has no types
    # Loaded when it is needed: it takes a tenth of a second, which every command of the CLI would pay.
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415
    from botocore.session import Session  # noqa: PLC0415

    try:
        session = Session()
        session.set_config_variable("metadata_service_timeout", _METADATA_TIMEOUT_S)
        session.set_config_variable("metadata_service_num_attempts", 1)
        resolver = session.get_component("credential_provider")
        if not at_amazon:
            # Elsewhere than at Amazon there is no machine role: asking for one only times out, unexplained.
            resolver.remove(_MACHINE_ROLE)
        return resolver.load_credentials()
    except BotoCoreError as error:
        raise _unusable(place, error) from None


def _unusable(place: str, error: Exception) -> SourceUnreachable:
    first = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    return SourceUnreachable(
        f"the credentials for {place} are not usable: {first}",
        remedy="correct AWS_PROFILE and the files it refers to, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    )
