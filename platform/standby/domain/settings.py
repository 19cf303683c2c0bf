"""The base of every component's settings: environment variables with the prefix ``STANDBY_``, checked strictly."""

from __future__ import annotations

from typing import Self, get_args

from pydantic import SecretStr, ValidationError
from pydantic_core import ErrorDetails
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
            faults = "; ".join(cls._fault(part) for part in error.errors())
            raise ConfigurationError(
                f"settings are not valid: {faults}", remedy="set or correct the named variables"
            ) from error

    @classmethod
    def _fault(cls, part: ErrorDetails) -> str:
        name = cls._variable(part["loc"])
        if part["type"] == "missing":
            meaning = cls.model_fields[str(part["loc"][0])].description
            return f"{name} is not set" + (f" ({meaning})" if meaning else "")
        told = cls.model_fields.get(str(part["loc"][0]))
        if told is not None and SecretStr in (told.annotation, *get_args(told.annotation)):
            return f"{name}: {part['msg']}"  # what was given may be a secret with a slip in it
        return f"{name}: {part['msg']} (got {str(part['input'])[:80]!r})"

    @classmethod
    def _variable(cls, location: tuple[int | str, ...]) -> str:
        return "STANDBY_" + "_".join(str(part) for part in location).upper()
