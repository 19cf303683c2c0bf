"""Names: which are legal, and how they become keys."""

from __future__ import annotations

import re
from typing import Final

from standby.domain.errors import InvalidInput

NAME_PATTERN: Final = r"^[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}$"
TENANT_PATTERN: Final = r"^[0-9]{12}$"
SERVED_NAME_PATTERN: Final = r"^[a-zA-Z0-9][a-zA-Z0-9._:-]*(/[a-zA-Z0-9][a-zA-Z0-9._:-]*)*$"
MAX_SERVED_NAME: Final = 128
DEFAULT_TENANT: Final = "000000000000"
# No name that a caller may choose has it: a record of such a name belongs to an endpoint and is in no list.
HIDDEN: Final = "="

_NAME = re.compile(NAME_PATTERN)
_TENANT = re.compile(TENANT_PATTERN)
_SERVED_NAME = re.compile(SERVED_NAME_PATTERN)


def check_name(kind: str, name: str) -> str:
    """Return ``name`` if it is legal for a ``kind`` (model, endpoint, node, …); SageMaker's own rule.

    Raises InvalidInput otherwise.
    """
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{kind} name {name[:80]!r} is not legal: 1 to 63 letters, digits and inner hyphens ({NAME_PATTERN})",
            remedy=f"choose a {kind} name such as 'smol-135m'",
        )
    return name


def check_tenant(tenant: str) -> str:
    """Return ``tenant`` if it is a 12-digit account id. Raises InvalidInput otherwise."""
    if not _TENANT.fullmatch(tenant):
        raise InvalidInput(f"tenant {tenant[:40]!r} is not a 12-digit account id", remedy="use 12 digits, e.g. 000000000000")
    return tenant


def check_served_name(name: str) -> str:
    """Return ``name`` if it can be an OpenAI ``model`` id (``org/name`` is legal). Raises InvalidInput otherwise."""
    if len(name) > MAX_SERVED_NAME or not _SERVED_NAME.fullmatch(name):
        raise InvalidInput(
            f"served model name {name[:140]!r} is not legal: at most {MAX_SERVED_NAME} characters, parts joined by '/'",
            remedy="choose a name such as 'HuggingFaceTB/SmolLM2-135M-Instruct'",
        )
    return name


def key(*parts: str) -> str:
    """Join ``parts`` into a table key: ``tenant.name``, ``node.instance``; a part never holds a dot."""
    assert all(part and "." not in part for part in parts), parts
    return ".".join(parts)
