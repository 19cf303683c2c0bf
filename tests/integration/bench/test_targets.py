"""Which target a word is, and SageMaker's operations through our own gateway, signed by botocore."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from standby.bench.load import run_load
from standby.bench.targets.choice import TargetOptions, choose
from standby.bench.targets.findings import COUNTED
from standby.bench.targets.http import HttpTarget
from standby.bench.targets.requests import Asking, Form, place_of
from standby.bench.targets.sagemaker import SageMakerTarget, sagemaker_place
from standby.bench.values import ErrorClass, Run
from standby.domain.errors import EndpointNotFound, InvalidInput, NotAuthenticated, Unavailable
from support.bench_values import a_plan
from support.runtime_rig import RuntimeRig, runtime_rig
from support.scripted_http import Answer, scripted_server
from support.upstream import Call, tcp_upstream


@dataclass(frozen=True)
class KnownConnection:
    url: str
    api_key: str | None = "sk-mine"


@dataclass
class KnownSession:
    """A session whose gateway knows the endpoint ``smol``, which is served as ``smol-lm``."""

    url: str | None = "http://127.0.0.1:8080"
    tenant: str | None = None
    json: bool = False
    asked: list[str] = field(default_factory=list)
    down: bool = False

    def connection(self) -> KnownConnection:
        if self.url is None:
            raise Unavailable("no gateway is known")
        return KnownConnection(self.url)

    def call(self, method: str, path: str) -> Any:
        self.asked.append(f"{method} {path}")
        if self.down:
            raise Unavailable("no gateway answers")
        if path != "/api/v1/endpoints/smol":
            raise EndpointNotFound("no such endpoint")
        return {"served_name": "smol-lm"}

    def client(self, *, timeout_s: float = 60.0) -> Any:
        raise AssertionError("nobody looks anything up")


def chosen(word: str, session: KnownSession | None = None, **options: Any) -> HttpTarget:
    target = choose(word, TargetOptions(**options), session or KnownSession()).target
    assert isinstance(target, HttpTarget)
    return target


def test_an_endpoints_name_is_the_gateways_with_its_key_and_served_name() -> None:
    found = choose("smol", TargetOptions(), KnownSession(tenant="222222222222"))
    target = found.target
    assert isinstance(target, HttpTarget)
    assert (target.place.origin, target.path, target.asking.model) == (
        "http://127.0.0.1:8080",
        "/v1/chat/completions",
        "smol-lm",
    )
    assert target.headers == {b"authorization": b"Bearer sk-mine", b"x-standby-tenant": b"222222222222"}
    assert (found.ours, found.endpoint) == (True, "smol")
    assert "sk-mine" not in repr(target)


def test_an_endpoint_that_is_not_there_is_said_before_any_load() -> None:
    with pytest.raises(EndpointNotFound):
        choose("other", TargetOptions(), KnownSession())


def test_a_gateway_that_is_down_is_left_to_the_report() -> None:
    found = choose("smol", TargetOptions(), KnownSession(down=True))
    assert isinstance(found.target, HttpTarget)
    assert found.target.asking.model == "smol"
    assert "did not say" in found.notes[0]


@pytest.mark.parametrize(
    ("url", "form", "path"),
    [
        ("http://h:1", Form.CHAT, "/v1/chat/completions"),
        ("http://h:1/v1/", Form.COMPLETIONS, "/v1/completions"),
        ("http://h:1/api/v3", Form.CHAT, "/api/v3/chat/completions"),
        ("http://h:1/v1/chat/completions", Form.CHAT, "/v1/chat/completions"),
        ("https://h/openai/v1", Form.CHAT, "/openai/v1/chat/completions"),
    ],
)
def test_a_url_is_a_base_or_the_operations_own(url: str, form: Form, path: str) -> None:
    assert chosen(url, form=form, model="m").path == path


def test_the_gateways_key_goes_to_no_other_server() -> None:
    assert chosen("http://elsewhere:8080/v1", model="m").headers == {}
    assert chosen("http://127.0.0.1:8080/v1", model="m").headers == {b"authorization": b"Bearer sk-mine"}
    assert chosen("http://elsewhere:8080/v1", model="m", key="sk-x").headers == {b"authorization": b"Bearer sk-x"}
    assert chosen("http://elsewhere:8080/v1", KnownSession(url=None), model="m").headers == {}


def test_the_only_model_of_a_server_is_asked_for() -> None:
    models: list[dict[str, str]] = [{"id": "tiny"}]
    with scripted_server(lambda _: Answer(200, json.dumps({"data": models}).encode())) as server:
        assert chosen(f"{server.url}/v1", key="sk-x").asking.model == "tiny"
        assert (server.asked[0].path, server.asked[0].authorization) == ("/v1/models", "Bearer sk-x")
        models.append({"id": "other"})
        with pytest.raises(InvalidInput, match="tiny, other"):
            chosen(f"{server.url}/v1")
        models.clear()
        assert "lists no model" in choose(f"{server.url}/v1", TargetOptions(), KnownSession()).notes[0]


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"data": 3}', b'{"data": [{}]}'])
def test_a_server_that_lists_no_models_is_asked_all_the_same(body: bytes) -> None:
    with scripted_server(lambda _: Answer(200, body)) as server:
        found = choose(f"{server.url}/v1", TargetOptions(), KnownSession())
    assert isinstance(found.target, HttpTarget)
    assert found.target.asking.model == "default"
    assert "does not list its models" in found.notes[0]


@pytest.mark.parametrize(
    "url",
    ["ftp://h/", "http://", "http://h:x/", "http://h:99999/", "http://u:p@h/", "http://h/?a=1", "http://h/ b", "http://é/"],
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        place_of(url)


@pytest.mark.parametrize(
    "url",
    ["http://u:hidden1@h/", "http://:hidden1@h/", "http://hidden1@h/", "ftp://u:hidden1@h/", "http://h/?key=hidden1",
     "http://h/#hidden1", "http://u:hidden1@h:x/", "http://u:hidden1@h:99999/"],
)  # fmt: skip
def test_what_may_be_a_key_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    """A target's URL is its name in every report."""
    with pytest.raises(InvalidInput) as refused:
        place_of(url)
    assert "hidden1" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "authority", "origin"),
    [
        ("http://h:80/v1", "h", "http://h"),
        ("https://h/v1", "h", "https://h"),
        ("https://h:8443", "h:8443", "https://h:8443"),
        ("http://[::1]:8080", "[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_places_are_named_as_the_host_header_has_them(url: str, authority: str, origin: str) -> None:
    place = place_of(url)
    assert (place.authority, place.origin) == (authority, origin)


def test_sagemakers_runtime_is_where_the_options_or_awss_variables_say() -> None:
    assert sagemaker_place("eu-west-1", None, {}).origin == "https://runtime.sagemaker.eu-west-1.amazonaws.com"
    assert sagemaker_place("cn-north-1", None, {}).origin == "https://runtime.sagemaker.cn-north-1.amazonaws.com.cn"
    ours = {"AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME": "http://127.0.0.1:8080", "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    assert sagemaker_place("us-east-1", None, ours).origin == "http://127.0.0.1:8080"
    assert sagemaker_place("us-east-1", "http://127.0.0.1:9", ours).origin == "http://127.0.0.1:9"


def test_sagemaker_without_credentials_or_region_is_said_in_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(InvalidInput, match="region"):
        choose("sagemaker:e", TargetOptions(), KnownSession())
    with pytest.raises(NotAuthenticated, match="credentials"):
        choose("sagemaker:e", TargetOptions(region="us-east-1"), KnownSession())
    with pytest.raises(InvalidInput, match="profile"):
        choose("sagemaker:e", TargetOptions(region="us-east-1", profile="absent"), KnownSession())


# ---- signed requests ---------------------------------------------------------------------------------------------------


@pytest.fixture
async def rig() -> AsyncIterator[RuntimeRig]:
    async with runtime_rig() as there:
        there.answers(_answers)
        yield there


async def _answers(call: Call) -> None:
    body = json.loads(call.body)
    if not body.get("stream"):
        choice = {"text": "Paris"} if call.path == "/v1/completions" else {"message": {"content": "Paris"}}
        content = {"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}
        await call.json(200, json.dumps(content).encode())
        return
    await call.begin_stream()
    for reason in (None, None, "stop"):
        event = {"choices": [{"delta": {"content": "a"}, "finish_reason": reason}]}
        await call.chunk(b"data: " + json.dumps(event).encode() + b"\n\n")
    await call.chunk(b"data: [DONE]\n\n")
    await call.end_stream()


def signed(rig: RuntimeRig, monkeypatch: pytest.MonkeyPatch, *, secret: str | None = None, **options: Any) -> SageMakerTarget:
    _, credentials = rig.world.key()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", credentials.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret or credentials.secret_key)
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    found = choose("sagemaker:e", TargetOptions(region="us-east-1", endpoint_url=rig.url, **options), KnownSession(url=None))
    assert isinstance(found.target, SageMakerTarget)
    return found.target


@pytest.mark.parametrize("stream", [True, False])
async def test_both_operations_are_answered(rig: RuntimeRig, monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    target = signed(rig, monkeypatch, stream=stream)
    run = await run_load(a_plan([0.0, 0.02, 0.04]), target)
    await target.close()
    assert [sample.error for sample in run.samples] == [""] * 3
    assert [sample.completion_tokens for sample in run.samples] == [3 if stream else 1] * 3
    assert all((sample.first_token_s is not None) is stream for sample in run.samples)
    assert all(sample.request_id for sample in run.samples)
    assert len(rig.asked) == 3


async def test_a_key_that_may_not_mark_tests_is_noted(rig: RuntimeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    target = signed(rig, monkeypatch, stream=False)
    run = await run_load(a_plan([0.0]), target)
    await target.close()
    assert (run.samples[0].ok, COUNTED in run.notes) == (True, True)


async def test_a_wrong_secret_is_a_failure_of_its_class(rig: RuntimeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    target = signed(rig, monkeypatch, secret="wrong" * 8)
    run = await run_load(a_plan([0.0]), target)
    await target.close()
    assert run.samples[0].error == ErrorClass.CLIENT.value
    assert "signature" in run.samples[0].message


async def test_the_containers_own_form_may_be_sent(rig: RuntimeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    target = signed(rig, monkeypatch, stream=False, form=Form.INPUTS)
    run = await run_load(a_plan([0.0]), target)
    await target.close()
    assert run.samples[0].error == ""


async def asked_once(answer: Callable[[Call], Awaitable[None]], **options: Any) -> Run:
    """One request to a server that answers as told, over a target that a command line has named."""
    async with tcp_upstream(answer) as (_, port):
        found = choose(f"http://127.0.0.1:{port}/v1", TargetOptions(model="m", **options), KnownSession(url=None))
        run = await run_load(a_plan([0.0]), found.target)
        await found.target.close()
    return run


@pytest.mark.parametrize("rubbish", ["nan", "inf", "-1", "x", "1e999"])
async def test_marks_that_make_no_sense_are_no_measurement(rubbish: str) -> None:
    """A wait that is no number would leave every percentile without an order."""

    async def marked(call: Call) -> None:
        marks = f"x-standby-rung: r{rubbish}\r\nx-standby-wait-ms: {rubbish}\r\nx-standby-phases-ms: loaded={rubbish},odd=3\r\n"
        await call.json(200, b'{"choices": [{"text": "Paris"}]}', headers=marks)

    run = await asked_once(marked, stream=False)
    (sample,) = run.samples
    assert (sample.error, sample.rung, sample.waited_s, sample.phases_ms) == ("", "", None, ())


async def test_tokens_that_nobody_counted_are_said_to_be_estimates() -> None:
    async def uncounted(call: Call) -> None:
        await call.begin_stream()
        await call.chunk(b'data: {"choices": [{"text": "Paris", "finish_reason": "stop"}]}\n\n')
        await call.end_stream()

    run = await asked_once(uncounted)
    assert run.samples[0].completion_tokens == 1
    assert [note for note in run.notes if "1 answers did not say how many tokens" in note]


async def test_the_key_is_in_no_report_though_a_server_repeats_it() -> None:
    async def echoing(call: Call) -> None:
        shown = call.headers["authorization"].removeprefix("Bearer ")
        await call.json(401, json.dumps({"error": {"message": f"nobody has {shown}"}}).encode())

    run = await asked_once(echoing, key="plain-words-as-a-key")
    assert run.samples[0].error == ErrorClass.CLIENT.value
    assert "plain-words" not in run.model_dump_json()


async def test_a_redirect_is_no_answer_and_is_not_followed() -> None:
    async def elsewhere(call: Call) -> None:
        await call.write(b"HTTP/1.1 307 Temporary Redirect\r\nlocation: http://127.0.0.1:1/v1\r\ncontent-length: 0\r\n\r\n")

    run = await asked_once(elsewhere)
    assert (run.samples[0].status, run.samples[0].error) == (307, ErrorClass.RUBBISH.value)
    assert "http://127.0.0.1:1/v1" in run.samples[0].message


async def test_throttling_by_aws_is_throttling() -> None:
    """AWS says 400 where HTTP has 429."""

    async def refusing(call: Call) -> None:
        await call.json(400, b'{"message": "Rate exceeded"}', headers="x-amzn-errortype: ThrottlingException:http://x/\r\n")

    async with tcp_upstream(refusing) as (_, port):
        target = HttpTarget("t", place_of(f"http://127.0.0.1:{port}"), "/v1/chat/completions", Asking(model="m"))
        run = await run_load(a_plan([0.0]), target)
        await target.close()
    assert (run.samples[0].error, run.samples[0].status) == (ErrorClass.THROTTLED.value, 400)
