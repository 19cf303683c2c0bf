"""``standby keys``: create, list, expire, revoke and reseal, bearer keys and AWS's pairs alike."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from standby.cli.models import segment
from standby.cli.output import moment, print_facts, print_json, print_table
from standby.cli.session import JsonOption, Options, options
from standby.domain.access import ALL_SCOPES, Scope
from standby.domain.durations import parse_duration
from standby.domain.errors import InvalidInput
from standby.domain.priority import Priority
from standby.sagemaker.auth.access_keys import is_key_id

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Create, list, expire and revoke keys: bearer keys (by administrators), and with --aws pairs for AWS's tools.",
)

AwsOption = Annotated[bool, typer.Option("--aws", help="A pair of keys for AWS's tools, instead of a bearer key.")]
KeyId = Annotated[str, typer.Argument(metavar="ID", help="Id of the key, from `standby keys list`.")]


@app.command()
def create(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Says who uses the key.")],
    aws: AwsOption = False,
    session: Annotated[
        bool, typer.Option("--session", help="With --aws: a temporary pair with a session token, for 12 h at most.")
    ] = False,
    tenant: Annotated[str | None, typer.Option(help="12-digit account of the key; default: your own.")] = None,
    admin: Annotated[bool, typer.Option("--admin", help="May make keys and act for every tenant; bearer keys only.")] = False,
    scope: Annotated[list[Scope] | None, typer.Option(help="What it may be used for; default: everything.")] = None,
    expires: Annotated[
        str | None, typer.Option(help="It ends after this time, e.g. 30d; default: never (--session: 1h).")
    ] = None,
    priority: Annotated[
        Priority | None,
        typer.Option(help="The most urgent priority that its requests may have, e.g. batch; default: the endpoint's limit."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Make a key and print it once: a bearer key is stored as a digest, a pair sealed.

    Example: standby keys create ci --aws --tenant 123456789012 --scope invoke --expires 30d
    """
    if (session and not aws) or (admin and aws):
        raise InvalidInput("--session is for --aws, and --admin is for bearer keys", remedy="see `standby keys create --help`")
    body: dict[str, object] = {
        "name": name,
        "tenant": tenant,
        "expires_in_s": None if expires is None else _seconds(expires),
        "priority": priority,
    }
    opened = options(ctx, json)
    if not aws:
        body |= {"role": "admin" if admin else "tenant", "scopes": [one.value for one in scope or ALL_SCOPES]}
        _show_bearer_key(opened, opened.call("POST", "/api/v1/keys", body=body))
        return
    body |= {"session": session, "scopes": None if scope is None else [one.value for one in scope]}
    _show_pair(opened, opened.call("POST", "/api/v1/access-keys", body=body))


@app.command("list")
def list_keys(ctx: typer.Context, aws: AwsOption = False, json: JsonOption = False) -> None:
    """List all bearer keys, or with --aws the pairs of your tenant; never a secret."""
    session = options(ctx, json)
    answer = session.call("GET", "/api/v1/access-keys" if aws else "/api/v1/keys")
    if session.json:
        print_json(answer)
        return
    print_table(
        ("ID", "NAME", "TENANT", "KIND", "SCOPES", "PRIORITY", "CREATED", "EXPIRES", "REVOKED"),
        [
            (
                k["access_key_id"] if aws else k["id"],
                k["name"],
                k["tenant"],
                ("session" if k["session"] else "aws") if aws else k["role"],
                ", ".join(k["scopes"]),
                k["priority"] or "-",
                *(moment(k[at]) for at in ("created_at", "expires_at", "revoked_at")),
            )
            for k in answer["access_keys" if aws else "keys"]
        ],
        empty="no keys",
    )


@app.command()
def expire(
    ctx: typer.Context,
    key_id: KeyId,
    after: Annotated[str, typer.Option("--in", help="From now, e.g. 1h; 'never' takes the end away.")],
    json: JsonOption = False,
) -> None:
    """Change when a pair for AWS's tools ends."""
    session = options(ctx, json)
    body = {"expires_in_s": None if after == "never" else _seconds(after)}
    key = session.call("PATCH", f"/api/v1/access-keys/{segment(key_id)}", body=body)
    ends = moment(key["expires_at"])
    print_json(key) if session.json else print(f"key {key['access_key_id']} ends {f'at {ends}' if ends else 'never'}")


@app.command()
def revoke(ctx: typer.Context, key_id: KeyId, json: JsonOption = False) -> None:
    """Revoke a key; requests with it are refused from now on."""
    session = options(ctx, json)
    aws = is_key_id(key_id)
    key = session.call("DELETE", f"/api/v1/{'access-keys' if aws else 'keys'}/{segment(key_id)}")
    print_json(key) if session.json else print(f"key {key_id} ({key['name']}) is revoked")


@app.command()
def reseal(ctx: typer.Context, json: JsonOption = False) -> None:
    """Seal all that is stored with the current sealing key, after a rotation; then the previous one can go.

    Every gateway and node must have the new key first, with the previous one behind it in STANDBY_SECRETS_KEY.
    """
    session = options(ctx, json)
    answer = session.call("POST", "/api/v1/access-keys/reseal")
    if session.json:
        print_json(answer)
        return
    print(f"{answer['resealed']} sealed again with key {answer['key_version']}")
    for name in answer["not_opened"]:
        print(f"not opened, sealed with a key that this gateway lacks: {name}")


def _show_bearer_key(session: Options, key: dict[str, Any]) -> None:
    if session.json:
        print_json(key)
        return
    print(key["api_key"])
    urgency = f", priority {key['priority']}" if key["priority"] else ""
    typer.echo(f"key {key['id']} for tenant {key['tenant']} ({key['role']}{urgency}); it is not shown again", err=True)


def _show_pair(session: Options, key: dict[str, Any]) -> None:
    if session.json:
        print_json(key)
        return
    print_facts(
        [
            ("access key id", key["access_key_id"]),
            ("secret access key", key["secret_access_key"]),
            ("session token", key["session_token"] or ""),
            ("region", key["region"]),
            *([("priority", key["priority"])] if key["priority"] else []),
        ]
    )
    ends = f", until {moment(key['expires_at'])}" if key["expires_at"] is not None else ""
    typer.echo(f"for tenant {key['tenant']}{ends}; the secret is not shown again", err=True)


def _seconds(text: str) -> float:
    seconds = parse_duration(text)
    if seconds == float("inf"):
        raise InvalidInput(f"{text!r} is no time that ends", remedy="e.g. 30d")
    return seconds
