"""The catalogue of models: complete at zero, honest about strangers, and the name in an answer is the one asked for."""

from __future__ import annotations

import httpx
import pytest

from support.deployment import PARIS, Deployment, Json, error_of, text_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = "org/smol-135m"


@pytest.mark.parametrize("path", [f"/v1/models/{MODEL}", "/v1/models/org%2Fsmol-135m"], ids=["slash", "encoded"])
async def test_a_model_at_zero_is_listed_and_retrieved(there: Deployment, path: str) -> None:
    """Field case B52: the listing comes from the registry, and what is listed can be retrieved; neither starts anything."""
    await has_model(there)
    listed = (await there.call("GET", "/v1/models")).json()
    assert [item["id"] for item in listed["data"]].count(MODEL) == 1
    one = await there.call("GET", path)
    assert one.status_code == 200
    assert one.json() in listed["data"]
    assert one.json()["object"] == "model"
    await there.all_is_told()
    assert there.spawns("smol") == 0


async def test_an_unknown_model_is_not_found_and_starts_nothing(there: Deployment) -> None:
    """Field case B52: a typo is 404 model_not_found, on the retrieval and on the call."""
    await has_model(there)
    error_of(await there.call("GET", f"/v1/models/{MODEL}x"), 404, "model_not_found")
    error = error_of(await there.chat(f"{MODEL}x"), 404, "model_not_found")
    assert f"{MODEL}x" in error["message"]
    await there.all_is_told()
    assert there.engines() == []
    assert await there.instance("smol") is None


async def test_another_tenants_model_looks_like_no_model(there: Deployment) -> None:
    """Field case B52: same status and same words as for a name that nobody has, and it is not listed."""
    await has_model(there)
    issued = await there.api("POST", "/keys", {"name": "stranger", "tenant": "222222222222"})
    stranger = {"authorization": f"Bearer {issued['api_key']}"}
    assert (await there.call("GET", "/v1/models", headers=stranger)).json()["data"] == []
    for method, path in (("GET", "/v1/models/{}"), ("POST", "/v1/chat/completions"), ("POST", "/endpoints/{}/invocations")):
        theirs = await strange_call(there, method, path, "smol" if "endpoints" in path else MODEL, stranger)
        nobodys = await strange_call(there, method, path, "nobody", stranger)
        assert theirs == nobodys
    await there.all_is_told()
    assert await there.instance("smol") is None


async def strange_call(there: Deployment, method: str, path: str, name: str, headers: dict[str, str]) -> tuple[int, Json]:
    """The status and the error, with the name taken out of its words."""
    body = {"model": name, "messages": []} if method == "POST" else None
    answer: httpx.Response = await there.call(method, path.format(name), headers=headers, json=body)
    error: Json = answer.json() if path.startswith("/endpoints") else answer.json()["error"]
    assert answer.status_code == (400 if path.startswith("/endpoints") else 404)
    return answer.status_code, {key: str(value).replace(name, "?") for key, value in error.items()}


async def test_the_answer_names_the_model_that_was_asked_for(there: Deployment) -> None:
    """Field case B52, also after the gateway that listed it was killed."""
    await has_model(there)
    await there.kill_gateway(0)
    assert MODEL in [item["id"] for item in (await there.call("GET", "/v1/models")).json()["data"]]
    answer = await there.chat(MODEL)
    assert text_of(answer) == PARIS
    assert answer.json()["model"] == MODEL


async def has_model(there: Deployment) -> None:
    if (await there.call("GET", "/api/v1/endpoints/smol")).status_code == 404:
        await there.endpoint("smol", served_name=MODEL)
