"""``standby credentials``: create, list, delete."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from standby.cli.models import segment
from standby.cli.output import moment, print_json, print_table
from standby.cli.session import JsonOption, options
from standby.domain.errors import InvalidInput

SECRET_VARIABLE: Final = "STANDBY_STORE_SECRET_KEY"  # noqa: S105 - the name of the variable
TOKEN_VARIABLE: Final = "STANDBY_STORE_SESSION_TOKEN"  # noqa: S105 - the name of the variable

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Store, list and delete keys for your own stores.")

Name = Annotated[str, typer.Argument(help="Name to register models with.")]


@app.command()
def create(
    ctx: typer.Context,
    name: Name,
    access_key: Annotated[str, typer.Option(help="Access key id.")],
    secret_key_file: Annotated[
        Path | None, typer.Option(help=f"File that holds the secret key, - for standard input; else ${SECRET_VARIABLE}.")
    ] = None,
    session_token_file: Annotated[
        Path | None, typer.Option(help=f"File that holds the token of temporary keys; else ${TOKEN_VARIABLE}.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Put other keys under a name that is stored already.")] = False,
    json: JsonOption = False,
) -> None:
    """Store a pair of keys, sealed. The secret comes from a file, the environment or a prompt: never from the command line.

    Example: standby credentials create team-a --access-key AKIA… --secret-key-file secret.txt
    """
    body = {
        "name": name,
        "access_key": access_key,
        "secret_key": _secret_key(secret_key_file),
        "session_token": _session_token(session_token_file),
        "replace": replace,
    }
    session = options(ctx, json)
    made = session.call("POST", "/api/v1/credentials", body=body)
    print_json(made) if session.json else print(f"credentials {name} are stored; use them with --credentials {name}")


@app.command("list")
def list_credentials(ctx: typer.Context, json: JsonOption = False) -> None:
    """List the names of the stored credentials, never the keys."""
    session = options(ctx, json)
    answer = session.call("GET", "/api/v1/credentials")
    if session.json:
        print_json(answer)
        return
    print_table(
        ("NAME", "STORED", "USED BY"),
        [(item["name"], moment(item["created_at"]), ", ".join(item["used_by"])) for item in answer["credentials"]],
        empty="no credentials; store some with `standby credentials create NAME --access-key …`",
    )


@app.command()
def delete(ctx: typer.Context, name: Name, json: JsonOption = False) -> None:
    """Forget a pair of keys. Refused while a model uses it."""
    session = options(ctx, json)
    answer = session.call("DELETE", f"/api/v1/credentials/{segment(name)}")
    print_json(answer) if session.json else print(f"credentials {name} are deleted")


def _secret_key(file: Path | None) -> str:
    if file is not None:
        return _read(file)
    found = os.environ.get(SECRET_VARIABLE)
    if found:
        return found
    if not sys.stdin.isatty():
        raise InvalidInput(
            "there is no secret key, and no terminal to ask on",
            remedy=f"give --secret-key-file (- for standard input), or set {SECRET_VARIABLE}",
        )
    return str(typer.prompt("Secret key", hide_input=True, err=True))


def _session_token(file: Path | None) -> str | None:
    return _read(file) if file is not None else os.environ.get(TOKEN_VARIABLE) or None


def _read(file: Path) -> str:
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidInput(f"{file} cannot be read: {reason}", remedy="name a file that holds the secret alone") from None
    if not text.strip():
        raise InvalidInput(f"{file} holds no secret", remedy="name a file that holds the secret alone")
    return text.strip()
