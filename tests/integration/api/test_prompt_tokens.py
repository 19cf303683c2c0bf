"""Routes of variants with several engines, and prompts that are counted with a tokenizer from the tenant's own store."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from standby.artifacts.credentials import Credentials
from standby.artifacts.inspection import inspect
from standby.artifacts.stored_keys import seal_keys
from standby.domain.ask import Ask
from standby.domain.endpoint import Backend, Variant
from standby.domain.instance import InstanceState, Rung
from standby.domain.model import EngineKind, Model, SourceOptions
from standby.domain.serving import model_of_part, parts_of, version_of
from standby.domain.traffic import Tier, TrafficPolicy
from standby.gateway import tokens
from standby.gateway.desk import AllRooms
from standby.gateway.directory import Directory
from standby.gateway.hybrid import TokenCount
from standby.host.sealing import SealingKey
from support.builders import TENANT, a_config, a_manifest, a_model, an_endpoint, an_instance
from support.cluster_records import make_node
from support.control_api import Control
from support.real_model import real_model_path
from support.s3_server import S3Server, s3_server
from support.waiting import until

SEALING = SealingKey(b"k" * 32)
VARIANT = Variant(
    model="m",
    backends=(
        Backend(engine=EngineKind.LLAMA_CPP, slots=2),
        Backend(name="long", engine=EngineKind.VLLM, weights="bf16", slots=8),
    ),
)
QUESTION = "Name the capital of France."


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def store(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[S3Server]:
    """A store that only the tenant's stored keys open, with the real model in it."""
    async with s3_server(tmp_path_factory.mktemp("store"), "private") as server:
        await server.upload("private", "m/model.gguf", real_model_path().read_bytes())
        yield server


@pytest.fixture
def nothing_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """For models whose weights lie in no store that there is: it would be asked again and again until the test ends."""
    monkeypatch.setattr(tokens, "read_tokenizer", lambda *_: None)


@pytest.fixture
async def directory(control: Control, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Directory]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "platform")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "platform")
    made = Directory(
        control.tables, AllRooms(10_000), time.monotonic, time.time, on_demand=lambda _desk, _urgent: None, sealing=SEALING
    )
    await made.start()
    yield made
    await made.stop()


async def _create(control: Control, directory: Directory, model: Model) -> None:
    tables = control.tables
    await tables.models.create(f"{TENANT}.m", model)
    traffic = TrafficPolicy(tier=Tier.CRITICAL)
    await tables.endpoint_configs.create(f"{TENANT}.e-1", a_config(variants=(VARIANT,), traffic=traffic))
    await tables.endpoints.create(f"{TENANT}.e", an_endpoint())
    await until(lambda: all(each.entries for each in (directory.models, directory.configs, directory.endpoints)))


async def test_a_route_has_a_part_for_each_engine(control: Control, directory: Directory, nothing_to_read: None) -> None:
    """Each with the version that the controller gives its instances, and the policy of the config."""
    model = a_model(engine=EngineKind.LLAMA_CPP, weights={"bf16": a_manifest(source_uri="s3://models/bf16/")})
    await _create(control, directory, model)
    route = directory.desk(TENANT, "e").route
    assert (route.traffic.tier, route.version, route.hybrid) == (Tier.CRITICAL, "", True)
    expected = []
    for backend, part in parts_of(VARIANT):
        served = model_of_part(model, part, backend)
        assert served is not None
        assert backend is not None
        expected.append((backend.label, backend.engine, version_of(served, part), backend.slots, served.manifest.digest))
    assert list(route.parts) == expected
    assert [part.backend for part in route.parts] == ["llama_cpp", "long"]


async def test_a_model_that_comes_later_makes_versions_known(
    control: Control, directory: Directory, nothing_to_read: None
) -> None:
    tables = control.tables
    await tables.endpoint_configs.create(f"{TENANT}.e-1", a_config(variants=(VARIANT,)))
    await tables.endpoints.create(f"{TENANT}.e", an_endpoint())
    await until(lambda: bool(directory.configs.entries) and bool(directory.endpoints.entries))
    desk = directory.desk(TENANT, "e")
    desk.instance_changed(an_instance(backend="long", version="another"), 0.0)
    assert [part.version for part in desk.route.parts] == ["", ""]
    assert desk.has_ready
    await tables.models.create(f"{TENANT}.m", a_model(weights={"bf16": a_manifest(source_uri="s3://models/bf16/")}))
    await until(lambda: all(part.version for part in desk.route.parts))
    assert desk.route.count_tokens is not None


async def test_prompts_are_counted_with_what_the_tenants_own_keys_read(
    control: Control, directory: Directory, store: S3Server
) -> None:
    """The platform's keys do not open the store, and the stored ones are opened only for this."""
    keys = Credentials(store.access_key, store.secret_key)
    await control.tables.credentials.create(f"{TENANT}.mine", seal_keys(keys, TENANT, "mine", SEALING, 1.0))
    options = SourceOptions(endpoint_url=store.url, region=store.region, credentials="mine")
    manifest = await inspect("s3://private/m/", options, credentials=keys)
    await _create(control, directory, a_model(manifest=manifest))
    counter = directory.desk(TENANT, "e").route.count_tokens
    assert counter is not None
    ask = Ask(prompt_bytes=len(QUESTION), prompt=lambda: QUESTION)
    assert counter(ask) is None
    await until(lambda: counter(ask) is not None)
    assert counter(ask) == TokenCount(6, estimated=False)


async def test_without_the_stored_keys_prompts_are_estimated(
    control: Control, directory: Directory, store: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    options = SourceOptions(endpoint_url=store.url, region=store.region, credentials="gone")
    keys = Credentials(store.access_key, store.secret_key)
    manifest = (await inspect("s3://private/m/", options, credentials=keys)).model_copy(update={"source": options})
    await _create(control, directory, a_model(manifest=manifest))
    counter = directory.desk(TENANT, "e").route.count_tokens
    assert counter is not None
    assert counter(Ask()) is None
    await until(lambda: "the stored credentials 'gone' do not exist any more" in caplog.text)
    assert counter(Ask()) is None


async def test_a_climb_is_as_long_as_the_quickest_node_measured_it(
    control: Control, directory: Directory, nothing_to_read: None
) -> None:
    """From where the variant's instances are now: asleep on one node, nothing at all on the other."""
    model = a_model(engine=EngineKind.LLAMA_CPP, weights={"bf16": a_manifest(source_uri="s3://models/bf16/")})
    await _create(control, directory, model)
    desk = directory.desk(TENANT, "e")
    assert desk.climb_s(desk.route) is None
    costs = {model.manifest.digest: {Rung.COLD: 9.0, Rung.ASLEEP: 0.2}}
    for name in ("n1", "n2"):
        await control.tables.nodes.put(name, make_node(name, costs=costs))
    await until(lambda: desk.climb_s(desk.route) == 9.0)
    await control.tables.instances.put("n1.i1", an_instance(backend="llama_cpp", state=InstanceState.ASLEEP))
    await until(lambda: desk.climb_s(desk.route) == 0.2)
