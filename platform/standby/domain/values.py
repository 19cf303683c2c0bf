"""The two bases of everything that is stored or sent: ``Value`` and ``Record``."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

SCHEMA_VERSION = 1


class Value(BaseModel):
    """A frozen value inside the process or inside a record; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Record(BaseModel):
    """A frozen value that crosses a process boundary.

    Unknown fields are ignored, so that during a rolling upgrade an older reader still understands what a newer
    writer stored; a change that an older reader must not misread raises ``schema_version``.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")

    schema_version: int = SCHEMA_VERSION

    def encode(self) -> bytes:
        """Return the record as UTF-8 JSON."""
        return self.model_dump_json().encode()
