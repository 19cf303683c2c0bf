"""Why an endpoint is where it is: the last decisions of the controller, and what it means to do next."""

from __future__ import annotations

from typing import Any, Final

from pydantic import ValidationError
from starlette.responses import Response

from standby.bus.subjects import outlook_subject
from standby.domain.errors import EndpointNotFound, StandbyError, Unavailable
from standby.domain.events import DecisionMade
from standby.domain.outlook import Outlook
from standby.gateway.api.context import ApiRoute, Call, missing
from standby.gateway.api.responses import json_response

DEFAULT_LAST: Final = 20
MOST: Final = 500
ANSWER_LIMIT_S: Final = 1.0


async def why(call: Call) -> Response:
    """The endpoint's last decisions, newest first (``?last=``, 20), each with its inputs, and what is meant next.

    ``outlook`` None: no controller leads or answers; ``outlook_missing`` says so. Raises EndpointNotFound, BusUnavailable.
    """
    if call.record_key(EndpointNotFound, "endpoint") not in call.context.copies.endpoints.entries:
        raise missing(EndpointNotFound, "endpoint", call.request.path_params["name"])
    name = str(call.request.path_params["name"])
    last = call.number("last", DEFAULT_LAST, MOST)
    events = await call.context.events.recent(last, call.tenant, name, kind="decision")
    decisions = [event for event in reversed(events) if isinstance(event, DecisionMade)]
    meant, lacking = await outlook_of(call, name)
    return json_response(
        {
            "endpoint": name,
            "outlook": meant,
            "outlook_missing": lacking,
            "decisions": [
                one.model_dump(include={"id", "at", "source", "instance", "action", "reason", "inputs"}) for one in decisions
            ],
        }
    )


async def outlook_of(call: Call, name: str) -> tuple[dict[str, Any] | None, str]:
    """Return what the leading controller means to do with an endpoint, or None and why that is not known."""
    try:
        raw = await call.context.bus.request(outlook_subject(call.tenant, name), b"", ANSWER_LIMIT_S)
        return Outlook.model_validate_json(raw).model_dump(exclude={"schema_version"}), ""
    except EndpointNotFound:
        return None, "the controller does not know the endpoint yet"
    except Unavailable as error:
        return None, f"no controller answers: {error.message}"
    except (StandbyError, ValidationError) as error:
        return None, f"the controller's answer cannot be read: {error}"


ROUTES: Final = (ApiRoute("GET", "/api/v1/endpoints/{name}/why", why),)
