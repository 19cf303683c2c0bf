"""Takes secrets out of text: by their form, by the name before them, and those that this process itself has been given.

Whatever a log line, an engine's output or an error carries passes through ``mask``. It errs towards hiding.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel, SecretStr

MASK: Final = "****"
# Shorter ones are words: hiding them everywhere would make logs unreadable, and no such key is accepted anywhere.
SHORTEST: Final = 6
_DEEPEST: Final = 6

# Whatever may repeat in front of something that must follow is bounded: a pattern tries it anew at each character, so that
# without a bound one line of 20 kB that an engine quotes from a request takes seconds, in a gateway's event loop.
_SECRETS: Final = (
    re.compile(r"(?i)(\bbearer\s+)[\w.~+/=-]{6,}"),
    re.compile(r"(?i)(\bauthorization[\"']?\s*[:=,]\s*b?[\"']?basic\s+)[\w+/=-]{4,}"),
    re.compile(r"(\bAWS4-HMAC-SHA256\s+)[^\"'\n]+"),
    re.compile(r"(?i)(\b(?:X-Amz-)?(?:Signature|Security-Token|Credential)=)[^\s\"',;&]{8,}"),
    re.compile(
        r"(?i)((?:api[_-]?key|access[_-]?key|secret|token(?!s)|passw(?:or)?d|pepper)[\w-]{0,64}[\"']?\s*[=:]\s*b?[\"']?)"
        r"[^\s\"',;&]{4,}"
    ),
    re.compile(r"(\b[a-z][a-z0-9+.-]{0,31}://[^\s/:@]{0,256}:)[^\s/@]+(?=@)"),
    re.compile(r"()\b(?:sk|sb|pk)-[\w-]{12,}"),
    re.compile(r"()\bsagemaker-api-key-[\w+/=-]{8,}"),
    re.compile(r"()\bhf_[A-Za-z0-9]{12,}"),
    re.compile(r"()\b(?:AKIA|ASIA)[A-Z0-9]{12,}"),
)
# In lower case: without any of these no pattern fits, which is cheap to see and true of nearly every line.
_HINTS: Final = (
    "bearer",
    "basic",
    "aws4-",
    "signature",
    "credential",
    "authorization",
    "api_key",
    "api-key",
    "apikey",
    "access_key",
    "access-key",
    "accesskey",
    "secret",
    "passw",
    "pepper",
    "://",
    "sk-",
    "sb-",
    "pk-",
    "hf_",
    "akia",
    "asia",
)
_SECRET_NAME: Final = re.compile(
    r"(?i)(?:^|[_-])(?:authorization|api_?key|access_?key|secret\w*|token|passw(?:or)?d|pepper|signature|credentials?)$"
)

# What this process was given, longest first: one may be part of another. As it is, and as it stands in JSON.
_given: list[str] = []


def hide(secrets: Iterable[str]) -> None:
    """From now on these are masked wherever they stand; what is shorter than 6 characters is not."""
    given = [secret for secret in secrets if len(secret) >= SHORTEST]
    _given[:] = sorted({*_given, *given, *(json.dumps(secret)[1:-1] for secret in given)}, key=len, reverse=True)


def secrets_of(settings: BaseModel) -> list[str]:
    """Return the values of a settings object's secret fields, and of a list ``name=value, …`` each value by itself."""
    values = (getattr(settings, name) for name in type(settings).model_fields)
    return [part for value in values if isinstance(value, SecretStr) for part in _parts(value.get_secret_value())]


def _parts(secret: str) -> Iterator[str]:
    yield from secret.split()
    for pair in secret.split(","):
        words = pair.partition("=")[2].split()
        # What comes before another word is an authentication scheme, as in ``Bearer x``: no secret.
        yield from words[1:] or words


def may_hold_secrets(text: str) -> bool:
    """Return whether ``mask`` might find anything in it; also true of text in JSON, and of names before secrets."""
    lower = text.casefold()
    return (
        any(hint in lower for hint in _HINTS)
        or lower.count("token") != lower.count("tokens")
        or any(secret in text for secret in _given)
    )


def mask(text: str) -> str:
    """Return ``text`` with keys, tokens, signatures and passwords replaced by ``****``."""
    if not may_hold_secrets(text):
        return text
    for secret in _given:
        if secret in text:
            text = text.replace(secret, MASK)
    for pattern in _SECRETS:
        text = pattern.sub(_masked, text)
    return text


def masked_value(name: str, value: object, depth: int = 0) -> Any:
    """Return a named value as a log may show it: one that is named like a secret not at all, text and containers masked."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth >= _DEEPEST or _SECRET_NAME.search(name):
        return MASK
    if isinstance(value, Mapping):
        return {mask(str(key)): masked_value(str(key), inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [masked_value("", inner, depth + 1) for inner in value]
    return mask(value if isinstance(value, str) else str(value))


def _masked(found: re.Match[str]) -> str:
    return f"{found[1]}{MASK}"
