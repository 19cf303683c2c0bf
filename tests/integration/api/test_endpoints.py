"""Endpoints: created at zero, unique names, retried and deleted by compare-and-set."""

from __future__ import annotations

import asyncio

import pytest

from standby.domain.endpoint import Failure
from standby.domain.errors import BusUnavailable
from standby.domain.instance import InstanceState
from support.control_api import ONE, Control
from support.waiting import until

FAILURE = Failure(
    reason="the engine ended with exit code 1", first_error="error: no such tensor", log_tail=("a", "b"), attempts=3
)


async def test_an_endpoint_is_in_service_at_zero(control: Control) -> None:
    await control.register()
    policy = {"keep_ready": "5m", "keep_asleep": 3600, "keep_staged": "forever", "slots": 2}

    endpoint = await control.create(policy=policy)

    assert (endpoint["status"], endpoint["rung"], endpoint["instances"]) == ("InService", "cold", [])
    assert (endpoint["served_name"], endpoint["config"], endpoint["generation"]) == ("chat", "chat-1", 1)
    stored = endpoint["variants"][0]["policy"]
    assert (stored["keep_ready"], stored["keep_asleep"], stored["keep_staged"], stored["slots"]) == (
        300.0,
        3600.0,
        "forever",
        2,
    )
    assert (await control.call("one", "GET", "/api/v1/endpoints/chat")).json() == endpoint


async def test_an_endpoint_shows_its_instances(control: Control) -> None:
    await control.register()
    await control.create()
    await control.place(InstanceState.READY, in_flight=1, resident_bytes=5)

    endpoint = (await control.call("one", "GET", "/api/v1/endpoints/chat")).json()
    assert endpoint["rung"] == "ready"
    assert endpoint["state"].startswith("ready, 1 of 4 slots busy")
    listed = (await control.call("one", "GET", "/api/v1/instances?endpoint=chat")).json()["instances"]
    assert [(item["id"], item["rung"], item["resident_bytes"]) for item in listed] == [("chat-i1", "ready", 5)]
    assert (await control.call("one", "GET", "/api/v1/instances?endpoint=other")).json() == {"instances": []}
    assert (await control.call("two", "GET", "/api/v1/instances")).json() == {"instances": []}


async def test_a_served_name_may_hold_slashes_and_is_unique(control: Control) -> None:
    await control.register()
    await control.create(served_name="HuggingFaceTB/SmolLM2-135M")

    taken = await control.call(
        "one", "POST", "/api/v1/endpoints", {"name": "chat2", "model": "smol", "served_name": "HuggingFaceTB/SmolLM2-135M"}
    )
    same = await control.call("one", "POST", "/api/v1/endpoints", {"name": "chat", "model": "smol", "served_name": "x"})

    assert taken.status_code == same.status_code == 409
    assert "taken by endpoint 'chat'" in taken.json()["error"]["message"]
    assert "endpoint 'chat' exists already" in same.json()["error"]["message"]
    assert [e["name"] for e in (await control.call("one", "GET", "/api/v1/endpoints")).json()["endpoints"]] == ["chat"]


async def test_a_race_for_a_served_name_has_one_winner(control: Control) -> None:
    await control.register()
    bodies = [{"name": f"chat{n}", "model": "smol", "served_name": "org/m"} for n in range(6)]

    answers = await asyncio.gather(*(control.call("one", "POST", "/api/v1/endpoints", body) for body in bodies))

    assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409, 409, 409]
    assert len(await control.tables.endpoint_configs.list(ONE)) == 1


async def test_variants_have_their_own_policies_and_there_are_at_most_ten(control: Control) -> None:
    await control.register()
    variants = [{"name": "b", "model": "smol", "policy": {"slots": 9}}, {"name": "c", "model": "smol", "weight": 0}]
    body = {"name": "split", "variants": variants, "policy": {"slots": 2}, "concurrency_limit": 5}

    answer = await control.call("one", "POST", "/api/v1/endpoints", body)

    told = [(v["name"], v["policy"]["slots"], v["weight"], v["concurrency_limit"]) for v in answer.json()["variants"]]
    assert told == [("b", 9, 1.0, 5), ("c", 2, 0.0, 5)]
    many = [{"name": f"v{number}", "model": "smol"} for number in range(11)]
    refused = await control.call("one", "POST", "/api/v1/endpoints", {"name": "more", "variants": many})
    assert refused.status_code == 400
    assert "11 given, an endpoint serves at most 10" in refused.json()["error"]["message"]


BAD: list[tuple[dict[str, object], int, str]] = [
    ({"model": "nothing"}, 404, "there is no model 'nothing'"),
    ({"model": "a.b"}, 400, "model name 'a.b' is not legal"),
    ({}, 400, "give either 'model' or 'variants'"),
    ({"model": "smol", "variants": [{"model": "smol"}]}, 400, "give either 'model' or 'variants'"),
    ({"variants": [{"model": "smol"}, {"model": "smol"}]}, 400, "are not all different"),
    ({"variants": [{"model": "smol", "weight": 0}]}, 400, "the weights sum to 0"),
    ({"model": "smol", "name": "-x"}, 400, "endpoint name '-x' is not legal"),
    ({"model": "smol", "served_name": "a//b"}, 400, "served model name 'a//b' is not legal"),
    (
        {"model": "smol", "policy": {"keep_ready": "soon"}},
        400,
        "policy.keep_ready: Value error, duration 'soon' is not understood",
    ),
    ({"model": "smol", "policy": {"keep_ready": -1}}, 400, "policy.keep_ready: Value error, duration -1 is negative"),
    ({"model": "smol", "policy": {"slots": 0}}, 400, "policy.slots: Input should be greater than or equal to 1 (got '0')"),
    ({"model": "smol", "policy": {"min_ready": 2}}, 400, "min_ready 2 is above max_instances 1"),
    ({"model": "smol", "memory_mb": 1}, 400, "memory_mb: Input should be greater than or equal to 128"),
]


async def test_bad_input_names_the_rule_and_creates_nothing(control: Control) -> None:
    await control.register()

    for fields, status, words in BAD:
        answer = await control.call("one", "POST", "/api/v1/endpoints", {"name": "chat", **fields})
        assert answer.status_code == status, answer.text
        assert words in answer.json()["error"]["message"]

    assert await control.tables.endpoints.list() == {}
    assert await control.tables.endpoint_configs.list() == {}


async def test_deletion_is_left_to_the_controller(control: Control) -> None:
    await control.register()
    await control.create()

    answer = await control.call("one", "DELETE", "/api/v1/endpoints/chat")
    again = await control.call("one", "DELETE", "/api/v1/endpoints/chat")
    recreated = await control.call("one", "POST", "/api/v1/endpoints", {"name": "chat", "model": "smol"})

    assert (answer.status_code, answer.json()["status"]) == (202, "Deleting")
    assert (again.status_code, again.json()) == (202, answer.json())
    assert recreated.status_code == 409
    assert "is being deleted" in recreated.json()["error"]["message"]
    assert (await control.call("one", "POST", "/api/v1/endpoints/chat/retry")).status_code == 409


async def test_an_endpoint_created_again_has_a_new_config_and_generation(control: Control) -> None:
    await control.register()
    await control.create()
    await control.create("chat-1", served_name="other")
    await control.tables.endpoints.delete(f"{ONE}.chat")
    await until(lambda: f"{ONE}.chat" not in control.context.copies.endpoints.entries)

    endpoint = await control.create()

    assert (endpoint["config"], endpoint["generation"]) == ("chat-2", 2)
    assert sorted(await control.tables.endpoint_configs.list()) == [f"{ONE}.chat-1-1", f"{ONE}.chat-2"]


async def test_retry_forgets_the_failure(control: Control) -> None:
    await control.register()
    await control.create()
    await control.fail("chat", FAILURE)

    failed = (await control.call("one", "GET", "/api/v1/endpoints/chat")).json()
    retried = await control.call("one", "POST", "/api/v1/endpoints/chat/retry")

    assert (failed["status"], failed["failure"]["first_error"]) == ("Failed", "error: no such tensor")
    assert failed["state"] == "failed: the engine ended with exit code 1"
    assert retried.status_code == 200
    assert (retried.json()["status"], retried.json()["failure"], retried.json()["generation"]) == ("InService", None, 2)


async def test_deletion_survives_a_concurrent_writer(control: Control) -> None:
    """The controller writes the status at the same time; neither write is lost."""
    await control.register()
    await control.create()

    await asyncio.gather(
        *(control.call("one", "POST", "/api/v1/endpoints/chat/retry") for _ in range(4)),
        control.call("one", "DELETE", "/api/v1/endpoints/chat"),
    )

    entry = await control.tables.endpoints.get(f"{ONE}.chat")
    assert entry is not None
    assert entry.value.status == "Deleting"


async def test_status_and_reads_work_while_the_bus_is_away(control: Control) -> None:
    await control.register()
    await control.create()
    await control.server.stop(kill=True)
    await until(lambda: not control.context.bus.connected)

    shown = await control.call("one", "GET", "/api/v1/endpoints/chat")
    status = (await control.call("admin", "GET", "/api/v1/status")).json()
    written = await control.call("one", "DELETE", "/api/v1/endpoints/chat")

    assert shown.json()["status"] == "InService"
    assert status["bus"]["connected"] is False
    assert status["leader"] is None
    assert (written.status_code, written.json()["error"]["code"]) == (503, BusUnavailable.code)
    assert written.headers["retry-after"]


@pytest.mark.parametrize(
    ("quotas", "fields", "limit"),
    [
        ({"endpoints": 1}, {}, "number of endpoints"),
        ({"concurrency": 5}, {"concurrency_limit": 3}, "concurrency"),
        ({"memory_mb": 4096}, {"memory_mb": 3072}, "Memory size in MB of all"),
        ({"memory_mb_per_endpoint": 1024}, {"memory_mb": 2048, "concurrency_limit": 1}, "per serverless endpoint"),
    ],
)
async def test_quotas_hold_whichever_api_makes_the_endpoint(
    control: Control, quotas: dict[str, int], fields: dict[str, int], limit: str
) -> None:
    """A tenant must not get round them by its bearer key."""
    made = await control.call("admin", "POST", "/api/v1/tenants", {"id": ONE, "quotas": quotas})
    assert made.status_code == 201
    await control.register()
    answers = [
        await control.call("one", "POST", "/api/v1/endpoints", {"name": name, "model": "smol", **fields}) for name in "ab"
    ]

    assert answers[-1].status_code == 403, answers[-1].text
    assert answers[-1].json()["error"]["code"] == "quota_exceeded"
    assert limit in answers[-1].json()["error"]["message"]
    kept = {entry.value.name for entry in (await control.tables.endpoints.list()).values()}
    assert kept == ({"a"} if answers[0].status_code == 201 else set())
    assert len(await control.tables.endpoint_configs.list()) == len(kept)
