"""The base of every component's settings: environment variables with the prefix ``STANDBY_``, checked strictly."""

from __future__ import annotations

from typing import Self

from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from standby.domain.errors import ConfigurationError


class Settings(BaseSettings):
    """Read from the environment once at start; every wrong value is named at once."""

    model_config = SettingsConfigDict(env_prefix="STANDBY_", frozen=True, extra="forbid", env_ignore_empty=True)

    @classmethod
    def load(cls, **overrides: object) -> Self:
        """Return the settings. Raises ConfigurationError naming each variable, its value's fault and the rule."""
        try:
            return cls(**{name: value for name, value in overrides.items() if value is not None})  # type: ignore[arg-type]
        except ValidationError as error:
            faults = "; ".join(
                f"{cls._variable(part['loc'])}: {part['msg']} (got {str(part['input'])[:80]!r})" for part in error.errors()
            )
            raise ConfigurationError(f"settings are not valid: {faults}", remedy="correct the named variables") from error

    @classmethod
    def _variable(cls, location: tuple[int | str, ...]) -> str:
        return "STANDBY_" + "_".join(str(part) for part in location).upper()
