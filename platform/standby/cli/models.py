"""``standby models``: register, list, show, delete."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from standby.cli.model_report import print_model
from standby.cli.output import SHORT_DIGEST, print_json, print_table, size
from standby.cli.session import JsonOption, options
from standby.domain.errors import InvalidInput

# Inspection reads the headers of every file in the store.
_REGISTER_LIMIT_S: Final = 300.0

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Register, list, show and delete models.")

Name = Annotated[str, typer.Argument(help="Name of the model.")]


@app.command()
def register(
    ctx: typer.Context,
    name: Name,
    uri: Annotated[str, typer.Argument(help="s3://bucket/prefix/, s3://bucket/one.gguf or file:///path.")],
    endpoint_url: Annotated[str | None, typer.Option(help="S3 endpoint, for stores other than AWS.")] = None,
    region: Annotated[str | None, typer.Option(help="S3 region.")] = None,
    anonymous: Annotated[bool, typer.Option("--anonymous", help="Read without credentials.")] = False,
    credentials: Annotated[str | None, typer.Option(help="Name of stored credentials; default: the platform's.")] = None,
    variant: Annotated[
        list[str] | None, typer.Option(help="Other weights of the same model as name=uri, e.g. q4=s3://…; repeat it.")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="llama_cpp, vllm or tensorrt_llm; default: the first that can.")] = None,
    option: Annotated[list[str] | None, typer.Option(help="Engine option as name=value, e.g. context=4096; repeat it.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace another version that no endpoint uses.")] = False,
    json: JsonOption = False,
) -> None:
    """Check a model's bytes in the store and register exactly this version.

    Credentials are the platform's, or those stored with `standby credentials create`. Other weights lie in the same store.
    Registering the same version again changes nothing; adding weights is possible while the model is in use.

    Example: standby models register smol s3://models/smollm2/ --variant q4=s3://models/smollm2-q4.gguf
    """
    given = {"endpoint_url": endpoint_url, "region": region, "anonymous": anonymous or None, "credentials": credentials}
    body = {
        "name": name,
        "source_uri": uri,
        "source": {field: value for field, value in given.items() if value is not None},
        "engine": engine,
        "engine_options": dict(parse_option(item) for item in option or []),
        "weights": {other: {"source_uri": place} for other, place in map(parse_variant, variant or [])},
        "replace": replace,
    }
    session = options(ctx, json)
    model = session.call("POST", "/api/v1/models", body=body, timeout_s=_REGISTER_LIMIT_S)
    print_json(model) if session.json else print_model(model)


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
            (
                m["name"],
                m["format"],
                m["engine"] or "none",
                size(m["bytes"]),
                str(m["object_count"]),
                m["digest"][:SHORT_DIGEST],
                m["source_uri"],
            )
            for m in answer["models"]
        ],
        empty="no models; register one with `standby models register NAME s3://…`",
    )


@app.command()
def show(ctx: typer.Context, name: Name, json: JsonOption = False) -> None:
    """Show a model's manifest: objects, facts, other weights, and which engines can serve it."""
    session = options(ctx, json)
    model = session.call("GET", f"/api/v1/models/{segment(name)}")
    print_json(model) if session.json else print_model(model)


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


def parse_variant(text: str) -> tuple[str, str]:
    """Return ``name=uri`` as name and URI. Raises InvalidInput."""
    name, equals, uri = text.partition("=")
    if not name or not equals or "://" not in uri:
        raise InvalidInput(f"--variant {text!r} is not of the form name=uri", remedy="e.g. --variant q4=s3://models/m-q4.gguf")
    return name, uri
