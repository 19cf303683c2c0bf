"""Which target a word on the command line is: an endpoint's name, a URL, or ``sagemaker:NAME``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import quote

from standby.bench.load import Target
from standby.bench.session import Connection, Session
from standby.bench.targets.http import HttpTarget
from standby.bench.targets.requests import Asking, Form, Place, place_of
from standby.bench.targets.sagemaker import SageMakerTarget, aws_session, sagemaker_place
from standby.domain.errors import InvalidInput, StandbyError, Unavailable
from standby.telemetry.redact import hide
from standby.wire.headers import TENANT

SAGEMAKER: Final = "sagemaker:"
_PATHS: Final = {Form.CHAT: "/chat/completions", Form.COMPLETIONS: "/completions"}
_NO_MODEL: Final = "default"
_LOOK_UP_S: Final = 10.0
_NOTHING: Final[tuple[str, ...]] = ()


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """What a command line says of the target; ``key`` is for a URL that is not the session's gateway."""

    form: Form = Form.CHAT
    model: str | None = None
    stream: bool = True
    usage: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = field(default=None, repr=False)
    region: str | None = None
    endpoint_url: str | None = None
    profile: str | None = None
    variant: str | None = None
    component: str | None = None
    timeout_s: float = 300.0
    shadow: bool = True
    sampled: bool = False


@dataclass(frozen=True, slots=True)
class Chosen:
    """The target; ``ours``: it is the session's gateway, which can be asked about the requests.

    ``endpoint``: its name there, where one is known; ``notes`` are for the report.
    """

    target: Target
    ours: bool = False
    endpoint: str | None = None
    notes: tuple[str, ...] = ()


def choose(word: str, options: TargetOptions, session: Session) -> Chosen:
    """Return the target that a word names. Outside of an event loop, as it asks servers for names.

    Raises InvalidInput, NotFound where the gateway knows no such endpoint, NotAuthenticated. A server that does not answer is
    no error here: the report says so.
    """
    if word.startswith(SAGEMAKER):
        return _sagemaker(word.removeprefix(SAGEMAKER), options, session)
    if "://" in word:
        return _url(word, options, session)
    return _endpoint(word, options, session)


def _endpoint(name: str, options: TargetOptions, session: Session) -> Chosen:
    connection = session.connection()
    place = place_of(connection.url)
    notes = _NOTHING
    served = options.model
    if served is None:
        try:
            served = str(session.call("GET", f"/api/v1/endpoints/{quote(name, safe='')}")["served_name"])
        except Unavailable as error:
            served, notes = name, (f"the gateway did not say by which name {name!r} is served: {error}",)
    asking = _asking(options, served)
    path = f"{place.path}/v1{_path(options)}"
    target = _http(name, place, path, asking, _gateway_headers(connection, session), options)
    return Chosen(target, True, name, notes)


def _url(url: str, options: TargetOptions, session: Session) -> Chosen:
    place = place_of(url)
    base = _without_operation(place.path)
    headers: dict[bytes, bytes] = {}
    gateway = _gateway_at(place, session)
    if options.key is not None:
        # Servers repeat keys in their refusals, and what they say stands in the report.
        hide([options.key])
        headers[b"authorization"] = b"Bearer " + options.key.encode()
    elif gateway is not None:
        headers = _gateway_headers(gateway, session)
    model, notes = options.model, _NOTHING
    if model is None:
        model, notes = _only_model(f"{place.origin}{base}/models", headers, options.timeout_s)
    whole = place.path.endswith(tuple(_PATHS.values()))
    path = place.path if whole else f"{base}{_path(options)}"
    return Chosen(_http(url, place, path, _asking(options, model), headers, options), gateway is not None, None, notes)


def _sagemaker(name: str, options: TargetOptions, session: Session) -> Chosen:
    if not name:
        raise InvalidInput("sagemaker: names no endpoint", remedy="e.g. sagemaker:my-endpoint")
    region, keys = aws_session(options.region, os.environ, options.profile)
    place = sagemaker_place(region, options.endpoint_url, os.environ)
    target = SageMakerTarget(
        name=f"{SAGEMAKER}{name}",
        endpoint=name,
        region=region,
        place=place,
        asking=_asking(options, options.model or ""),
        keys=keys,
        variant=options.variant,
        component=options.component,
        timeout_s=options.timeout_s,
        shadow=options.shadow,
    )
    ours = _gateway_at(place, session) is not None
    return Chosen(target, ours, name if ours else None)


def _http(
    name: str, place: Place, path: str, asking: Asking, headers: dict[bytes, bytes], options: TargetOptions
) -> HttpTarget:
    if asking.form is Form.INPUTS:
        raise InvalidInput("the form 'inputs' is for SageMaker's endpoints", remedy="give --api chat or completions")
    place = replace(place, path="")
    return HttpTarget(name, place, path, asking, headers, options.timeout_s, options.shadow, options.sampled)


def _asking(options: TargetOptions, model: str) -> Asking:
    return Asking(options.form, model, options.stream, options.usage, options.extra)


def _path(options: TargetOptions) -> str:
    return _PATHS.get(options.form, "")


def _gateway_headers(connection: Connection, session: Session) -> dict[bytes, bytes]:
    headers = {} if connection.api_key is None else {b"authorization": f"Bearer {connection.api_key}".encode()}
    if session.tenant is not None:
        headers[TENANT] = session.tenant.encode()
    return headers


def _gateway_at(place: Place, session: Session) -> Connection | None:
    """Return the session's gateway where it is what listens at the place."""
    try:
        connection = session.connection()
    except StandbyError:
        return None
    return connection if place_of(connection.url).origin == place.origin else None


def _without_operation(path: str) -> str:
    """Return the base of an OpenAI URL: what stands before ``/chat/completions``, ``/v1`` where there is nothing."""
    for operation in _PATHS.values():
        if path.endswith(operation):
            return path.removesuffix(operation)
    return path or "/v1"


def _only_model(url: str, headers: Mapping[bytes, bytes], timeout_s: float) -> tuple[str, tuple[str, ...]]:
    """Return the model that a server has, and what must be said of the choice. Raises InvalidInput where it has several."""
    import httpx  # noqa: PLC0415 (50 ms that other targets need not pay)

    try:
        # A proxy of the environment would be what is measured.
        response = httpx.get(url, headers=dict(headers), timeout=min(_LOOK_UP_S, timeout_s), trust_env=False)
        response.raise_for_status()
        names = [str(model["id"]) for model in response.json()["data"]]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
        said = str(error).partition("\n")[0] or type(error).__name__
        return _NO_MODEL, (f"the server does not list its models ({said}): it was asked for {_NO_MODEL!r}",)
    if len(names) == 1:
        return names[0], ()
    if not names:
        return _NO_MODEL, (f"the server lists no model: it was asked for {_NO_MODEL!r}",)
    raise InvalidInput(f"the server has {len(names)} models: {', '.join(names[:8])}", remedy="name one by --model")
