"""What a store's refusal means, in our own words. Pure: text of the client library in, an error of our tree out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from obstore.exceptions import InvalidPathError, PermissionDeniedError, PreconditionError, UnauthenticatedError

from standby.artifacts.location import SourceInterrupted
from standby.domain.errors import ArtifactChanged, ArtifactError, SourceUnreachable, UnsupportedArtifact

_PERMANENT: Final = frozenset({301, 302, 307, 308, 400, 401, 403, 404, 405})
_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w{1,60})</Code>")
_REGION: Final = re.compile(r"<Region>([a-z0-9-]{1,40})</Region>")
_REDIRECTS: Final = ("redirect without LOCATION", "error following redirect")
# In the order in which they tell more: a refused connection is also an "error sending request".
_CAUSES: Final = (
    ("refused", "connection refused"),
    ("lookup address", "the host name is not known"),
    ("dns error", "the host name is not known"),
    ("certificate", "the TLS certificate is not trusted"),
    ("imed out", "no answer in time"),
    ("timedout", "no answer in time"),
    ("TimedOut", "no answer in time"),
    ("reset", "connection reset"),
    ("decoding response body", "connection cut"),
    ("IncompleteMessage", "connection cut"),
)
_REMEDIES: Final[Mapping[str, str]] = {
    "NoSuchBucket": "check the bucket's name and the endpoint URL",
    "NoSuchKey": "check the key",
    "RequestTimeTooSkewed": "set this machine's clock right, e.g. with an NTP client: stores allow 15 minutes of difference",
    "RequestExpired": "set this machine's clock right, e.g. with an NTP client",
    "ExpiredToken": "renew the temporary keys: their session token has expired",
    "InvalidToken": "renew the temporary keys: their session token is not valid",
    "InvalidObjectState": "restore the object from its archive storage class first",
    "SlowDown": "the store asks for fewer requests: retry in a minute",
    "ServiceUnavailable": "the store is overloaded or starting: retry in a minute",
    "TooManyRequests": "the store asks for fewer requests: retry in a minute",
}


@dataclass(frozen=True)
class Place:
    """Where the question went, for the words."""

    bucket: str
    endpoint: str
    region: str
    keys: str
    """Where the keys came from, in words."""

    def of(self, key: str) -> str:
        """Bucket, key and endpoint in words."""
        return f"bucket {self.bucket!r}, key {key!r}, at {self.endpoint}"


def status_of(error: Exception) -> int | None:
    """Return the HTTP status of the answer, None when there was none; a redirect that led nowhere is 301."""
    text = str(error)
    found = _STATUS.search(text)
    if found:
        return int(found.group(1))
    if any(mark in text for mark in _REDIRECTS):
        return 301
    return 403 if isinstance(error, (PermissionDeniedError, UnauthenticatedError)) else None


def region_in(error: Exception) -> str | None:
    """Return the region that the answer names as the right one."""
    found = _REGION.search(str(error))
    return found.group(1) if found else None


def translated(
    error: Exception, key: str, place: Place, *, pinned: bool = False, begun: bool = False, right_region: str | None = None
) -> ArtifactError:
    """Return our own error for one of obstore; its text, many lines with request internals, goes no further.

    ``pinned``: the object is one of a manifest. ``right_region``: where the store says that the bucket lies.
    """
    text, where, status = str(error), place.of(key), status_of(error)
    code = found.group(1) if (found := _CODE.search(text)) else ""
    if isinstance(error, InvalidPathError) or (isinstance(error, (ValueError, TypeError)) and "parse path" in text):
        return UnsupportedArtifact(
            f"{where}: an object's key is no legal path: {_in_one_line(error)}", remedy="rename the object"
        )
    if pinned and (isinstance(error, (PreconditionError, FileNotFoundError)) or status in {404, 412, 416}):
        gone = isinstance(error, FileNotFoundError) or status == 404
        return changed(key, f"it {'is gone' if gone else 'is another one now'} ({where})")
    answer = " ".join(["HTTP", str(status), *([code] if code else [])]) if status else _cause(text)
    if right_region is not None and right_region != place.region:
        return _elsewhere(where, answer, place, right_region)
    if status in _PERMANENT:
        return SourceUnreachable(f"{where}: {answer}", remedy=_remedy(status, code, place, right_region))
    interrupted = SourceInterrupted(
        f"{where}: {answer}",
        remedy=_REMEDIES.get(code) or _slow(status) or "check the endpoint URL and that the store runs; then retry",
    )
    interrupted.begun = begun
    return interrupted


def changed(key: str, what: str) -> ArtifactChanged:
    """Return the error for an object that is not the registered one."""
    return ArtifactChanged(f"artifact changed since it was registered: object {key!r}: {what}", remedy="register again")


def _elsewhere(where: str, answer: str, place: Place, region: str) -> SourceUnreachable:
    return SourceUnreachable(
        f"{where}: {answer}: the bucket lies in region {region}, asked was {place.region}",
        remedy=f"register it with region {region}, and with that region's endpoint URL or none",
    )


def _remedy(status: int | None, code: str, place: Place, right_region: str | None) -> str:
    if code in _REMEDIES:
        return _REMEDIES[code]
    if status == 404:
        return "check the bucket's name and the endpoint URL"
    if status in {401, 403}:
        return f"check {place.keys}, that they may list and read there, and this machine's clock"
    if status is not None and 300 <= status < 400:
        if right_region is not None:
            return f"the bucket lies in region {right_region}: use that region's endpoint URL, or none"
        return f"the bucket lies in another region than {place.region}: register it with the right one"
    return "check the URI, the region and the endpoint URL"


def _slow(status: int | None) -> str:
    return _REMEDIES["ServiceUnavailable"] if status in {429, 503} else ""


def _cause(text: str) -> str:
    return next((words for mark, words in _CAUSES if mark in text), "no answer")


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).partition("Debug source")[0].split())[:200]
