"""``standby endpoints``: create, list, show, wait, retry, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from standby.cli.models import segment
from standby.cli.output import failure_lines, moment, print_facts, print_json, print_table, size
from standby.cli.progress import Climb
from standby.cli.session import JsonOption, Options, options
from standby.cli.traffic_options import backends_body, traffic_body
from standby.cli.traffic_report import backend_rows, traffic_facts
from standby.cli.waiting import wait_for, wait_until_gone
from standby.cli.why import meant
from standby.domain.durations import FOREVER, format_duration, parse_duration
from standby.domain.endpoint import EndpointStatus, PricePreset, ScalePolicy
from standby.domain.priority import Priority
from standby.domain.schedule import Schedule
from standby.domain.traffic import HybridPolicy, QueueMode, Tier, TrafficPolicy

DEFAULT_TIMEOUT: Final = "5m"
_POLICY: Final = ScalePolicy()
_TRAFFIC: Final = TrafficPolicy()
_UNSET: Final = {
    "scale_out_at": "as the slots say",
    "keep_ready": "by policy",
    "keep_asleep": "by policy",
    "keep_zygote": "by policy",
    "keep_staged": "the bytes stay",
    "price_preset": "as the controller is set",
    "wait_price": "the preset's",
    "scale_ahead": "where prices are snappy",
}

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Create, list, show, wait for, retry and delete endpoints.")

Name = Annotated[str, typer.Argument(help="Name of the endpoint.")]
Timeout = Annotated[str, typer.Option(help="How long to wait, e.g. 90s or 5m.")]


class RungName(StrEnum):
    """Rungs that one can wait for."""

    READY = "ready"
    ASLEEP = "asleep"
    ZYGOTE = "zygote"
    STAGED = "staged"
    COLD = "cold"


@app.command()
def create(
    ctx: typer.Context,
    name: Name,
    model: Annotated[str, typer.Option(help="The registered model.")],
    weights: Annotated[str | None, typer.Option(help="One of the model's other weights, e.g. q4.")] = None,
    served_name: Annotated[
        str | None, typer.Option(help="OpenAI model id; may hold '/'; default: the endpoint's name.")
    ] = None,
    keep_ready: Annotated[
        str | None, typer.Option(help="Idle time until it falls asleep; default: as the prices and its callers' habits say.")
    ] = None,
    keep_asleep: Annotated[
        str | None,
        typer.Option(help="Time asleep until its process ends; default: as the prices say."),
    ] = None,
    keep_zygote: Annotated[
        str | None,
        typer.Option(
            help="Time that a pre-imported process waits to fork it, for engines that have one, until only the bytes "
            "stay; default: as the prices say."
        ),
    ] = None,
    keep_staged: Annotated[str | None, typer.Option(help="Time staged until the bytes may go; default: they stay.")] = None,
    price_preset: Annotated[
        PricePreset | None,
        typer.Option(help="What a caller's wait weighs against memory held for him; default: as the controller is set."),
    ] = None,
    wait_price: Annotated[
        float | None, typer.Option(min=0, help="The same as a number: GB·s of device memory for a second's wait.")
    ] = None,
    slots: Annotated[
        int | None, typer.Option(help=f"Requests that one instance runs at once; default: {_POLICY.slots}.")
    ] = None,
    max_instances: Annotated[int | None, typer.Option(help=f"Most instances; default: {_POLICY.max_instances}.")] = None,
    scale_ahead: Annotated[
        bool | None,
        typer.Option(
            "--scale-ahead/--no-scale-ahead",
            help="Start more before a rise needs them: shorter waits, more memory; default: where prices are snappy.",
        ),
    ] = None,
    min_ready: Annotated[
        int | None, typer.Option(help=f"Instances that never leave ready; default: {_POLICY.min_ready}.")
    ] = None,
    max_cold_wait: Annotated[
        str | None,
        typer.Option(help=f"How long a request may wait for a cold start; default: {format_duration(_POLICY.max_cold_wait)}."),
    ] = None,
    schedule: Annotated[
        list[str] | None,
        typer.Option(
            help="Times with more instances, e.g. 'cron=0 8 * * 1-5,tz=Europe/Berlin,for=10h,min-ready=1'; may be repeated."
        ),
    ] = None,
    isolate: Annotated[bool, typer.Option("--isolate", help="Never on a node beside another tenant's instances.")] = False,
    memory_mb: Annotated[int | None, typer.Option(help="Host memory to reserve; default: estimated.")] = None,
    tier: Annotated[
        Tier | None, typer.Option(help=f"How much is done for a request when something fails; default: {_TRAFFIC.tier.value}.")
    ] = None,
    latency_target: Annotated[
        str | None, typer.Option(help="Arrival to first token, e.g. 500ms, that nearly all requests must meet.")
    ] = None,
    priority: Annotated[
        Priority | None,
        typer.Option(help=f"Of requests that ask for none; default: {_TRAFFIC.priority.default.value}."),
    ] = None,
    max_priority: Annotated[
        Priority | None,
        typer.Option(help=f"The most urgent one that may be asked for; default: {_TRAFFIC.priority.highest.value}."),
    ] = None,
    queue: Annotated[
        QueueMode | None, typer.Option(help="How the depth of the queue is found; adaptive needs a latency target.")
    ] = None,
    hybrid: Annotated[
        HybridPolicy | None,
        typer.Option(help=f"How one of several engines is chosen; default: {_TRAFFIC.hybrid.policy.value}."),
    ] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(
            help="One of several engines, e.g. engine=vllm,weights=full,slots=8,min-ready=1; repeat it, the preferred first."
        ),
    ] = None,
    traffic: Annotated[
        Path | None, typer.Option(help="JSON file with the whole traffic policy; the options above win over it.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it serves.")] = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
    json: JsonOption = False,
) -> None:
    """Create an endpoint at zero: it costs nothing until somebody asks.

    Example: standby endpoints create smol --model smol --keep-ready 5m --keep-asleep 1h --keep-staged forever

    Example: standby endpoints create chat --model smol --tier critical --latency-target 500ms
    --backend engine=llama_cpp --backend engine=vllm,weights=full
    """
    limit = parse_duration(timeout)
    policy = {
        "keep_ready": keep_ready,
        "keep_asleep": keep_asleep,
        "keep_zygote": keep_zygote,
        "keep_staged": keep_staged,
        "price_preset": price_preset,
        "wait_price": wait_price,
        "slots": slots,
        "max_instances": max_instances,
        "scale_ahead": scale_ahead,
        "min_ready": min_ready,
        "max_cold_wait": max_cold_wait,
        "schedules": schedule or None,
        "isolate": isolate or None,
    }
    body = {
        "name": name,
        "model": model,
        "weights": weights,
        "served_name": served_name,
        "memory_mb": memory_mb,
        "policy": {field: value for field, value in policy.items() if value is not None},
        "backends": backends_body(backend or ()),
        "traffic": traffic_body(
            traffic,
            tier=tier,
            latency_target=latency_target,
            priority=priority,
            max_priority=max_priority,
            queue=queue,
            hybrid=hybrid,
        ),
    }
    session = options(ctx, json)
    endpoint = session.call("POST", "/api/v1/endpoints", body=body)
    if wait:
        endpoint = _wait(session, name, None, limit)
    if session.json:
        print_json(endpoint)
    else:
        print(f"endpoint {name} is {endpoint['status']}, {endpoint['state']}; served as {endpoint['served_name']!r}")


@app.command("list")
def list_endpoints(ctx: typer.Context, json: JsonOption = False) -> None:
    """List the endpoints with their rungs."""
    session = options(ctx, json)
    answer = session.call("GET", "/api/v1/endpoints")
    if session.json:
        print_json(answer)
        return
    print_table(
        ("NAME", "STATUS", "RUNG", "INSTANCES", "SERVED AS", "STATE"),
        [
            (e["name"], e["status"], e["rung"], str(len(e["instances"])), e["served_name"], e["state"])
            for e in answer["endpoints"]
        ],
        empty="no endpoints; create one with `standby endpoints create NAME --model MODEL`",
    )


@app.command()
def show(ctx: typer.Context, name: Name, json: JsonOption = False) -> None:
    """Show an endpoint: policy, instances, and why it failed if it did."""
    session = options(ctx, json)
    endpoint = session.call("GET", f"/api/v1/endpoints/{segment(name)}", params={"outlook": "1"})
    print_json(endpoint) if session.json else _print_endpoint(endpoint)


@app.command()
def wait(
    ctx: typer.Context,
    name: Name,
    rung: Annotated[RungName | None, typer.Option(help="Wait for exactly this rung; default: until it serves.")] = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    json: JsonOption = False,
) -> None:
    """Wait until an endpoint serves, or is at a rung; it does not wake it.

    Ends with exit code 9 and the engine's own words if the endpoint failed, with 7 at the time limit.

    Example: standby endpoints wait smol --rung asleep --timeout 10m
    """
    limit = parse_duration(timeout)
    session = options(ctx, json)
    endpoint = _wait(session, name, None if rung is None else rung.value, limit)
    print_json(endpoint) if session.json else print(f"endpoint {name} is {endpoint['status']}, {endpoint['state']}")


@app.command()
def retry(ctx: typer.Context, name: Name, json: JsonOption = False) -> None:
    """Forget an endpoint's failure and try again at once."""
    session = options(ctx, json)
    endpoint = session.call("POST", f"/api/v1/endpoints/{segment(name)}/retry")
    if session.json:
        print_json(endpoint)
    else:
        print(f"endpoint {name} is {endpoint['status']} again, generation {endpoint['generation']}")


@app.command()
def delete(
    ctx: typer.Context,
    name: Name,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it is gone.")] = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
    json: JsonOption = False,
) -> None:
    """Delete an endpoint: open requests may end, new ones are refused."""
    limit = parse_duration(timeout)
    session = options(ctx, json)
    endpoint = session.call("DELETE", f"/api/v1/endpoints/{segment(name)}")
    if wait:
        asyncio.run(_until_gone(session, name, limit))
    if session.json:
        print_json(endpoint)
    else:
        print(f"endpoint {name} is {'deleted' if wait else 'being deleted'}")


def _wait(session: Options, name: str, rung: str | None, timeout_s: float) -> dict[str, Any]:
    async def waiting() -> dict[str, Any]:
        async with session.client() as client:
            with Climb() as climb:
                return await wait_for(client, name, rung, timeout_s, climb)

    return asyncio.run(waiting())


async def _until_gone(session: Options, name: str, timeout_s: float) -> None:
    async with session.client() as client:
        await wait_until_gone(client, name, timeout_s)


def _print_endpoint(endpoint: dict[str, Any]) -> None:
    print_facts(
        [
            ("endpoint", endpoint["name"]),
            ("status", endpoint["status"]),
            ("rung", endpoint["rung"]),
            ("state", endpoint["state"]),
            ("served as", endpoint["served_name"]),
            ("config", endpoint["config"]),
            ("generation", str(endpoint["generation"])),
            ("created", moment(endpoint["created_at"])),
        ]
    )
    for variant in endpoint["variants"]:
        weights = f" with weights {variant['weights']}" if variant["weights"] else ""
        print(f"\nvariant {variant['name']}: model {variant['model']}{weights}, weight {variant['weight']:g}")
        print_facts([(f"  {name}", _policy_value(name, value)) for name, value in variant["policy"].items()])
        if variant["backends"]:
            print()
            rows = backend_rows(variant, endpoint["instances"])
            print_table(("BACKEND", "ENGINE", "WEIGHTS", "SLOTS", "READY", "INSTANCES"), rows, empty="")
    _print_traffic(endpoint)
    print("\nidle instances")
    for line in meant(endpoint["outlook"], endpoint["outlook_missing"]):
        print(f"  {line}")
    _print_failure(endpoint)
    print()
    print_table(
        ("INSTANCE", "NODE", "RUNG", "SLOTS", "MEMORY", "STATE"),
        [
            (i["id"], i["node"], i["rung"], f"{i['in_flight']}/{i['slots']}", size(i["resident_bytes"]), i["words"])
            for i in endpoint["instances"]
        ],
        empty="no instances",
    )


def _print_traffic(endpoint: dict[str, Any]) -> None:
    variants = endpoint["variants"]
    if endpoint["traffic"] is None or not variants:
        return
    waits = max(parse_duration(variant["policy"]["max_cold_wait"]) for variant in variants)
    several = max(len(variant["backends"]) for variant in variants)
    print("\ntraffic")
    policy = TrafficPolicy.model_validate(endpoint["traffic"])
    print_facts([(f"  {name}", value) for name, value in traffic_facts(policy, waits, several)])


def _print_failure(endpoint: dict[str, Any]) -> None:
    failure = endpoint["failure"]
    if not failure:
        return
    who = f"backend {failure['backend']} " if failure.get("backend") else ""
    serves = "; another one can serve" if who and endpoint["status"] == EndpointStatus.IN_SERVICE else ""
    print(f"\n{who}failed: {failure['reason']} ({failure['attempts']} in a row){serves}")
    print("\n".join(failure_lines(failure)))


def _policy_value(name: str, value: Any) -> str:
    if value is None:
        return _UNSET.get(name, "-")
    told = _TOLD.get(name)
    return told(value) if told is not None else format_duration(FOREVER if value == "forever" else float(value))


def _schedules(value: Any) -> str:
    return "; ".join(Schedule.model_validate(one).told for one in value) or "-"


# Of a policy's fields those that are no durations.
_TOLD: Final[Mapping[str, Callable[[Any], str]]] = {
    "schedules": _schedules,
    **dict.fromkeys(("isolate", "scale_ahead"), lambda value: "yes" if value else "no"),
    "queue_bytes": lambda value: size(int(value)),
    "wait_price": lambda value: f"{value:g} GB·s a second",
    **dict.fromkeys(("min_ready", "max_instances", "slots", "queue_requests", "scale_out_at", "price_preset"), str),
}
