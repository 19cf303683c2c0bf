"""What asynchronous callers ask for: locations, ids, limits, and places that are not theirs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from standby.domain.async_invocation import Ticket, pack, unpack
from standby.domain.endpoint import EndpointConfig, ScalePolicy, Variant
from standby.domain.errors import Forbidden, InvalidInput, RevisionConflict
from standby.domain.model import SourceOptions
from standby.domain.priority import Priority
from standby.sagemaker.errors import AwsError
from standby.sagemaker.runtime import routes
from standby.sagemaker.runtime.answers import Place
from standby.sagemaker.runtime.asking import Request
from standby.sagemaker.runtime.async_accept import AsyncService
from standby.sagemaker.runtime.async_context import AsyncContext, Served
from standby.sagemaker.runtime.async_places import check_place, claims_of
from standby.sagemaker.runtime.async_request import Outputs, accepted, at_once, outputs_of, parse, repeatable_id
from standby.sagemaker.runtime.contract import Arrival, Asker
from support.builders import TENANT, a_config, an_endpoint

OUTPUTS = Outputs("s3://bkt/out", "s3://bkt/failed/", "", "")
OTHER = "222222222222"


def config_of(variants: tuple[Variant, ...] = (Variant(model="m"),), **asynchronous: Any) -> EndpointConfig:
    return a_config(variants=variants, request={"AsyncInferenceConfig": asynchronous} if asynchronous else {})


def test_a_name_that_is_no_file_name_becomes_one() -> None:
    for inference_id in ("../../x", "a b", "a/b", ".", "..", "ä"):
        work = accepted({}, b"x", an_endpoint(), OUTPUTS, inference_id=inference_id, now=1.0)
        assert work.inference_id == inference_id
        assert work.output_uri.removeprefix("s3://bkt/out/").removesuffix(".out").isalnum()
    assert (
        accepted({}, b"x", an_endpoint(), OUTPUTS, inference_id="Id_1.2-3", now=1.0).output_uri == "s3://bkt/out/Id_1.2-3.out"
    )


def test_an_invocation_comes_back_as_it_was_packed() -> None:
    body = b'{"a":\n\x00"b"}\n'
    work = accepted({"CustomAttributes": "a\tb"}, body, an_endpoint(), OUTPUTS, inference_id="i", now=1.5)
    assert unpack(pack(work, body)) == (work, body)


def test_equal_requests_are_equal_and_others_are_not() -> None:
    def digest(asked: dict[str, Any], body: bytes = b"x", **endpoint: Any) -> str:
        return accepted(asked, body, an_endpoint(**endpoint), OUTPUTS, inference_id="i", now=1.0).digest

    assert digest({}) == digest({})
    others = [
        digest({}, b"y"),
        digest({"Accept": "a"}),
        digest({"Filename": "a"}),
        digest({}, created_at=2.0),
        digest({}, tenant=OTHER),
    ]
    assert len({digest({}), *others}) == 6


def test_an_id_is_made_of_the_call() -> None:
    made = repeatable_id(TENANT, "e", b"call", {}, b"x")
    assert made == repeatable_id(TENANT, "e", b"call", {}, b"x")
    assert len({made, repeatable_id(OTHER, "e", b"call", {}, b"x"), repeatable_id(TENANT, "e", b"call", {}, b"y")}) == 3


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ({}, "S3OutputPath"),
        ({"S3OutputPath": "https://b.s3.amazonaws.com/x"}, "S3OutputPath"),
        ({"S3OutputPath": "s3://bkt/x", "S3FailurePath": "https://x"}, "S3FailurePath"),
    ],
)
def test_results_go_to_s3_only(output: dict[str, str], words: str) -> None:
    with pytest.raises(AwsError, match=words):
        outputs_of(config_of(OutputConfig=output), "e")


def test_endpoints_of_inference_components_are_not_asynchronous() -> None:
    with pytest.raises(AwsError, match="inference components"):
        outputs_of(config_of((), OutputConfig={"S3OutputPath": "s3://bkt/x"}), "e")


def test_failures_lie_beside_the_results_where_nothing_else_is_said() -> None:
    outputs = outputs_of(config_of(OutputConfig={"S3OutputPath": "s3://bkt/x/"}), "e")
    work = accepted({}, b"x", an_endpoint(), outputs, inference_id="i", now=1.0)
    assert (work.output_uri, work.failure_uri) == ("s3://bkt/x/i.out", "s3://bkt/x/i-error.out")


def test_the_limit_is_the_configs_for_each_instance() -> None:
    three = Variant(model="m", policy=ScalePolicy(slots=4, max_instances=3))
    serverless = Variant(name="s", model="m", concurrency_limit=5, policy=ScalePolicy(slots=5))
    assert at_once(config_of((three,), OutputConfig={})) == 12
    assert at_once(config_of((three,), ClientConfig={"MaxConcurrentInvocationsPerInstance": 2})) == 6
    assert at_once(config_of((three, serverless), ClientConfig={"MaxConcurrentInvocationsPerInstance": 100})) == 305


def test_https_inputs_where_they_are_allowed() -> None:
    headers = [(b"x-amzn-sagemaker-inputlocation", b"https://a.example/x")]
    assert parse("e", headers, b"", https=True)["InputLocation"] == "https://a.example/x"
    with pytest.raises(AwsError, match="https is not allowed"):
        parse("e", headers, b"", https=False)


# ---- places ------------------------------------------------------------------------------------------------------------


def served(tenant: str, created_at: float, path: str) -> tuple[Any, Any]:
    output = {"OutputConfig": {"S3OutputPath": path}}
    return an_endpoint(tenant=tenant, created_at=created_at), a_config(tenant=tenant, request={"AsyncInferenceConfig": output})


@pytest.mark.parametrize(
    ("uri", "may"),
    [
        ("s3://bkt/mine/out/x", True),
        ("s3://bkt/theirs/out/x", False),
        ("s3://bkt/theirs/out-of-nobody/x", True),
        ("s3://bkt/theirs/in/x", True),
        ("s3://bkt/mine/out/theirs/x", True),
        ("s3://other/theirs/out/x", True),
    ],
)
def test_where_others_results_go_is_theirs(uri: str, may: bool) -> None:
    """Who came first has the place, whoever names a folder within it later."""
    claims = claims_of(
        [
            served(OTHER, 3.0, "s3://bkt/mine/out/theirs"),
            served(TENANT, 2.0, "s3://bkt/mine/out/"),
            served(OTHER, 1.0, "s3://bkt/theirs/out"),
            served(TENANT, 4.0, "s3://bkt/theirs/out/mine"),
        ]
    )
    if may:
        check_place(uri, TENANT, claims, ())
    else:
        with pytest.raises(Forbidden):
            check_place(uri, TENANT, claims, ())
    assert len(claims) == 4


def test_an_operator_may_say_where() -> None:
    places = ("s3://r/{tenant}", "s3://shared/in")
    for uri in (f"s3://r/{TENANT}/x", "s3://shared/in/x"):
        check_place(uri, TENANT, (), places)
    for uri in (f"s3://r/{OTHER}/x", f"s3://r/{TENANT}0/x", "s3://shared/input/x", "s3://any/x"):
        with pytest.raises(Forbidden):
            check_place(uri, TENANT, (), places)


def test_long_paths_of_strangers_are_not_remembered() -> None:
    """They cost memory before anybody has shown a key."""
    before = routes._remembered.cache_info().currsize
    for number in range(5):
        long = routes.route_of(f"/endpoints/{number}{'x' * 5000}/invocations")
        assert long is not None
        assert long.operation is routes.Operation.INVOKE
    assert routes._remembered.cache_info().currsize == before


async def test_who_asks_again_gets_the_places_with_the_keys_of_the_first_time() -> None:
    """The endpoint may name other places and no keys by now: the first ones were let through for the tenant's own keys."""
    tickets: dict[str, Ticket] = {}
    items: list[bytes] = []

    class Tickets:
        async def create(self, where: str, ticket: Ticket, *, life_s: float) -> None:
            if where in tickets:
                raise RevisionConflict(f"{where} is there for {life_s} s")
            tickets[where] = ticket

        async def get(self, where: str) -> SimpleNamespace:
            return SimpleNamespace(value=tickets[where])

    class Lanes:
        async def put(self, _lane: str, _id: str, item: bytes) -> None:
            items.append(item)

    context = SimpleNamespace(tables=SimpleNamespace(tickets=Tickets()), lanes=Lanes())
    unused: Any = None
    service = AsyncService(cast("AsyncContext", context), unused, unused, lambda _lane: None)
    asked = {"InputLocation": "s3://theirs/in.json"}
    for path, options in (("s3://theirs/out", SourceOptions(credentials="mine")), ("s3://here/out", SourceOptions())):
        made = accepted(asked, b"", an_endpoint(), Outputs(path, path, "", ""), inference_id="i", now=1.0, options=options)
        await service._queued(made, b"")

    first, again = (unpack(item)[0] for item in items)
    assert (again.output_uri, again.failure_uri, again.options) == (first.output_uri, first.failure_uri, first.options)
    assert again.options == SourceOptions(credentials="mine")
    assert again.repeated


async def test_the_callers_priority_is_kept_with_the_request() -> None:
    """What its header names, and what its key allows; another word is refused before anything is queued."""
    items: list[bytes] = []

    async def put(_lane: str, _id: str, item: bytes) -> None:
        items.append(item)

    async def create(_where: str, _ticket: Ticket, **_life: float) -> None:
        """Nobody has the id yet."""

    async def caller(_request: Request) -> tuple[Asker, bytes]:
        return Asker(TENANT, Priority.HIGH), b'{"messages": []}'

    config = config_of(OutputConfig={"S3OutputPath": "s3://bkt/out"})
    served = Served(an_endpoint(), config, SourceOptions(credentials="own"))
    context = SimpleNamespace(
        tables=SimpleNamespace(tickets=SimpleNamespace(create=create)),
        lanes=SimpleNamespace(put=put),
        served=lambda _tenant, _name: served,
        open_sources=False,
        now=lambda: 1.0,
    )
    understanding: Any = SimpleNamespace(caller=caller)
    unused: Any = None
    service = AsyncService(cast("AsyncContext", context), unused, understanding, lambda _lane: None)
    route = routes.RuntimeRoute(routes.Operation.ASYNC, "e")

    def asked(word: bytes) -> Request:
        headers = {b"x-standby-priority": word}
        scope = {"headers": list(headers.items())}
        return Request(route, Arrival(0.0, 1.0, "r", b"r"), Place("us-east-1", TENANT, "e"), headers, scope, unused, unused)

    await service.accept(asked(b"batch"))
    with pytest.raises(InvalidInput, match="asap"):
        await service.accept(asked(b"asap"))
    ((work, _),) = map(unpack, items)
    assert (work.wished, work.key_priority) == (Priority.BATCH, Priority.HIGH)
