"""A SageMaker endpoint: signed InvokeEndpoint and InvokeEndpointWithResponseStream, AWS's own or a gateway's.

botocore finds the credentials and signs; the request itself goes over the lean client, since an SDK's thread for each
request would measure the SDK.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import quote

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import Session

from standby.bench.load import Clock
from standby.bench.targets.exchange import carry_out, pool_of, sample_of
from standby.bench.targets.findings import Findings
from standby.bench.targets.requests import Asking, Place, head_of, place_of
from standby.bench.values import ErrorClass, Planned, Sample
from standby.domain.errors import InvalidInput, NotAuthenticated
from standby.wire.headers import SHADOW

_SERVICE: Final = "sagemaker"
_AWS: Final = ".amazonaws.com"


class _Keys(Protocol):
    """Credentials that may be temporary: asked for anew by each request."""

    def get_frozen_credentials(self) -> Any: ...


@dataclass
class SageMakerTarget:
    """``variant`` and ``component`` name a part of the endpoint; ``keys`` are the caller's, as botocore finds them."""

    name: str
    endpoint: str
    region: str
    place: Place
    asking: Asking
    keys: _Keys
    variant: str | None = None
    component: str | None = None
    timeout_s: float = 300.0
    shadow: bool = True

    def __post_init__(self) -> None:
        self._pool = pool_of(self.place, self.timeout_s)
        operation = "invocations-response-stream" if self.asking.stream else "invocations"
        self._path = f"{self.place.path}/endpoints/{quote(self.endpoint, safe='')}/{operation}"
        self._url = f"{self.place.origin}{self._path}"
        self._headers = {"content-type": "application/json"}
        if self.variant is not None:
            self._headers["x-amzn-sagemaker-target-variant"] = self.variant
        if self.component is not None:
            self._headers["x-amzn-sagemaker-inference-component"] = self.component
        if self.shadow and not self.place.host.endswith(_AWS):
            self._headers[SHADOW.decode()] = "1"
        self._findings = Findings(shadow=self.shadow)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the report must know."""
        return self._findings.notes

    async def ask(self, planned: Planned, clock: Clock) -> Sample:
        """Sign and send one request and return what became of it."""
        sent_s = clock()
        body = self.asking.body(planned)
        try:
            head = self._signed(body)
        except (BotoCoreError, ClientError) as error:
            # The second one: keys of a role are fetched anew from time to time, and AWS may refuse it.
            failed = f"the request cannot be signed: {error}"
            return Sample(
                planned.due_s, sent_s, None, None, clock(), 0, ErrorClass.CONNECT.value, 0, 0, target=self.name, message=failed
            )
        data = b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body)
        exchange = await carry_out(self._pool, data, clock, self.timeout_s)
        exchange.sent_s = sent_s
        self._findings.add(exchange)
        return sample_of(exchange, planned, target=self.name, request_id="", trace_id="")

    async def close(self) -> None:
        """Close the kept connections."""
        self._pool.close()

    def _signed(self, body: bytes) -> bytes:
        request = AWSRequest("POST", self._url, headers=dict(self._headers), data=body)
        frozen = self.keys.get_frozen_credentials()
        SigV4Auth(Credentials(frozen.access_key, frozen.secret_key, frozen.token), _SERVICE, self.region).add_auth(request)
        return head_of(self.place, self._path, {name.encode(): value.encode() for name, value in request.headers.items()})


def sagemaker_place(region: str, endpoint_url: str | None, environment: Mapping[str, str]) -> Place:
    """Return where the runtime listens: at ``endpoint_url``, else as AWS's variables say, else in its region.

    Raises InvalidInput.
    """
    chosen = endpoint_url or environment.get("AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME") or environment.get("AWS_ENDPOINT_URL")
    if chosen:
        return place_of(chosen)
    domain = f"{_AWS}.cn" if region.startswith("cn-") else _AWS
    return place_of(f"https://runtime.sagemaker.{region}{domain}")


def aws_session(region: str | None, environment: Mapping[str, str], profile: str | None = None) -> tuple[str, _Keys]:
    """Return the region and the credentials that AWS's tools would use here. Raises InvalidInput, NotAuthenticated."""
    try:
        session = Session(profile=profile)
        found = region or session.get_config_variable("region") or environment.get("AWS_REGION")
        keys = session.get_credentials()
    except BotoCoreError as error:
        raise InvalidInput(f"AWS's configuration cannot be used: {error}", remedy="see `aws configure list`") from error
    if not found:
        raise InvalidInput("no AWS region is known", remedy="give --region, or set AWS_REGION")
    if keys is None:
        raise NotAuthenticated(
            "no AWS credentials are known",
            remedy="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; for a standby endpoint: `standby keys create --aws`",
        )
    return str(found), keys
