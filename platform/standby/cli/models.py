"""``standby models``: register, list, show, delete."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from standby.cli.output import moment, print_facts, print_json, print_table, size
from standby.cli.session import JsonOption, options
from standby.domain.errors import InvalidInput

# Inspection reads the headers of every file in the store.
_REGISTER_LIMIT_S: Final = 300.0

app = typer.Typer(no_args_is_help=True, help="Register, list, show and delete models.")

Name = Annotated[str, typer.Argument(help="Name of the model.")]


@app.command()
def register(
    ctx: typer.Context,
    name: Name,
    uri: Annotated[str, typer.Argument(help="s3://bucket/prefix/, s3://bucket/one.gguf or file:///path.")],
    endpoint_url: Annotated[str | None, typer.Option(help="S3 endpoint, for stores other than AWS.")] = None,
    region: Annotated[str | None, typer.Option(help="S3 region.")] = None,
    anonymous: Annotated[bool, typer.Option("--anonymous", help="Read without credentials.")] = False,
    engine: Annotated[str | None, typer.Option(help="llama_cpp, vllm or tensorrt_llm; default: by the format.")] = None,
    option: Annotated[list[str] | None, typer.Option(help="Engine option as name=value, e.g. context=4096; repeat it.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace another version that no endpoint uses.")] = False,
    json: JsonOption = False,
) -> None:
    """Check a model's bytes in the store and register exactly this version.

    Credentials are the gateway's, never sent from here. Registering the same version again changes nothing.

    Example: standby models register smol s3://models/smollm2/ --endpoint-url http://127.0.0.1:9000
    """
    given = {"endpoint_url": endpoint_url, "region": region, "anonymous": anonymous or None}
    body = {
        "name": name,
        "source_uri": uri,
        "source": {field: value for field, value in given.items() if value is not None},
        "engine": engine,
        "engine_options": dict(parse_option(item) for item in option or []),
        "replace": replace,
    }
    session = options(ctx, json)
    model = session.call("POST", "/api/v1/models", body=body, timeout_s=_REGISTER_LIMIT_S)
    print_json(model) if session.json else _print_model(model)


@app.command("list")
def list_models(ctx: typer.Context, json: JsonOption = False) -> None:
    """List the registered models."""
    session = options(ctx, json)
    answer = session.call("GET", "/api/v1/models")
    if session.json:
        print_json(answer)
        return
    print_table(
        ("NAME", "FORMAT", "ENGINE", "SIZE", "OBJECTS", "VERSION", "SOURCE"),
        [
            (m["name"], m["format"], m["engine"], size(m["bytes"]), str(m["object_count"]), m["digest"][:12], m["source_uri"])
            for m in answer["models"]
        ],
        empty="no models; register one with `standby models register NAME s3://…`",
    )


@app.command()
def show(ctx: typer.Context, name: Name, json: JsonOption = False) -> None:
    """Show a model's manifest: objects, bytes and facts."""
    session = options(ctx, json)
    model = session.call("GET", f"/api/v1/models/{segment(name)}")
    print_json(model) if session.json else _print_model(model)


@app.command()
def delete(ctx: typer.Context, name: Name, json: JsonOption = False) -> None:
    """Forget a model; its bytes in the store stay. Refused while an endpoint uses it."""
    session = options(ctx, json)
    answer = session.call("DELETE", f"/api/v1/models/{segment(name)}")
    print_json(answer) if session.json else print(f"model {name} is deleted")


def segment(name: str) -> str:
    """Return a name as one segment of a URL path."""
    from urllib.parse import quote  # noqa: PLC0415 (imported by httpx anyway; keeps the module's imports to what it is about)

    return quote(name, safe="")


def parse_option(text: str) -> tuple[str, str | int | float | bool]:
    """Return ``name=value`` with the value as a truth value, a number or text. Raises InvalidInput without ``=``."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise InvalidInput(f"--option {text!r} is not of the form name=value", remedy="e.g. --option context=4096")
    if value.lower() in {"true", "false"}:
        return name, value.lower() == "true"
    for number in (int, float):
        try:
            return name, number(value)
        except ValueError:
            continue
    return name, value


def _print_model(model: dict[str, Any]) -> None:
    facts = model["facts"]
    print_facts(
        [
            ("model", model["name"]),
            ("version", model["digest"]),
            ("source", model["source_uri"]),
            ("format", model["format"]),
            ("engine", model["engine"]),
            ("options", ", ".join(f"{name}={value}" for name, value in model["engine_options"].items())),
            ("architecture", facts["architecture"]),
            ("title", facts["name"]),
            ("parameters", f"{facts['parameter_count']:,}" if facts["parameter_count"] else ""),
            ("context", str(facts["context_length"] or "")),
            ("quantisation", facts["quantisation"]),
            ("chat template", "yes" if facts["has_chat_template"] else "no"),
            ("registered", moment(model["created_at"])),
            ("objects", f"{model['object_count']}, {size(model['bytes'])}"),
        ]
    )
    print_table(
        ("PATH", "SIZE", "ETAG"),
        [(item["path"], size(item["size"]), item["etag"]) for item in model.get("objects", [])],
        empty="",
    )
