"""What the allow-lists of all engines' options have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, Self

from pydantic import ValidationError

from standby.domain.errors import InvalidInput
from standby.domain.values import Value

Options = Mapping[str, str | int | float | bool]
_SHOWN: Final = 60


class EngineOptions(Value):
    """Options that a model may set: each with its type, bounds and meaning; what is not listed is refused."""

    engine: ClassVar[str]
    """How the engine is called in messages."""

    @classmethod
    def parse(cls, options: Options) -> Self:
        """Return the options. Raises InvalidInput that names each wrong one and lists the allowed ones."""
        try:
            return cls.model_validate(dict(options))
        except ValidationError as error:
            faults = "; ".join(
                f"{'.'.join(map(str, part['loc']))}={str(part['input'])[:_SHOWN]!r}: {_rule(part['type'], part['msg'])}"
                for part in error.errors()
            )
            raise InvalidInput(
                f"{cls.engine} engine options are not valid: {faults}",
                remedy=f"allowed options: {', '.join(sorted(cls.model_fields))}",
            ) from error


def _rule(kind: str, message: str) -> str:
    return "no such option" if kind == "extra_forbidden" else message
