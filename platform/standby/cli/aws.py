"""``standby aws``: the environment that points a shell's AWS tools here."""

from __future__ import annotations

import json as json_module
import shlex
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from standby.cli.output import print_json
from standby.cli.session import JsonOption, Options, options
from standby.domain.errors import NotFound
from standby.host.files import write_private

FILE_NAME: Final = "aws.json"
KEY_NAME: Final = "standby-aws"

_SERVICES: Final = ("SAGEMAKER", "SAGEMAKER_RUNTIME", "APPLICATION_AUTO_SCALING", "STS")
# A leftover token of other keys would be sent with ours, and no signature would be right.
_CLEARED: Final = ("AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN")


def aws(
    ctx: typer.Context,
    unset: Annotated[bool, typer.Option("--unset", help="Print the lines that take it back.")] = False,
    json: JsonOption = False,
) -> None:
    """Print environment lines that point AWS's tools in this shell here; other AWS services stay where they are.

    Makes a pair of keys for your tenant at the first call and keeps it in the state folder. The keys are for all AWS tools
    of the shell: start `standby up` from another one, if its model store needs keys of its own.

    Example: eval "$(standby aws)"; aws sagemaker list-endpoints
    """
    session = options(ctx, json)
    if unset:
        print(f"unset {' '.join((*_names(), *_CLEARED))};")
        return
    variables = environment(session.connection().url, _pair(session))
    if session.json:
        print_json(variables)
        return
    # Semicolons, so that an unquoted eval $(standby aws) works, too.
    for name, value in variables.items():
        print(f"export {name}={shlex.quote(value)};")
    print(f"unset {' '.join(_CLEARED)};")


def environment(url: str, pair: dict[str, Any]) -> dict[str, str]:
    """Return the variables for a gateway and a pair of keys."""
    return {
        **{f"AWS_ENDPOINT_URL_{service}": url for service in _SERVICES},
        "AWS_ACCESS_KEY_ID": str(pair["access_key_id"]),
        "AWS_SECRET_ACCESS_KEY": str(pair["secret_access_key"]),
        "AWS_DEFAULT_REGION": str(pair["region"]),
        "AWS_REGION": str(pair["region"]),
    }


def _names() -> tuple[str, ...]:
    nothing = {"access_key_id": "", "secret_access_key": "", "region": ""}
    return tuple(environment("", nothing))


def _pair(session: Options) -> dict[str, Any]:
    """Return the pair that was kept for this gateway and tenant, if it is still good; else make one and keep it."""
    where = f"{session.connection().url} {session.tenant or ''}"
    path = session.folder / FILE_NAME
    kept = _kept(path)
    pair = kept.get(where)
    if pair is None or not _still_good(session, pair):
        made = session.call("POST", "/api/v1/access-keys", body={"name": KEY_NAME})
        pair = {name: made[name] for name in ("access_key_id", "secret_access_key", "region")}
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(path, json_module.dumps({**kept, where: pair}))
    return pair


def _still_good(session: Options, pair: dict[str, Any]) -> bool:
    try:
        shown = session.call("GET", f"/api/v1/access-keys/{pair['access_key_id']}")
    except NotFound:
        return False
    pair["region"] = shown["region"]
    return shown["revoked_at"] is None and shown["expires_at"] is None


def _kept(path: Path) -> dict[str, dict[str, Any]]:
    """Return what was kept; a file that is none of ours counts as nothing, since all in it can be made again."""
    try:
        content = json_module.loads(path.read_text())
        return {
            str(where): dict(pair) for where, pair in content.items() if pair["access_key_id"] and pair["secret_access_key"]
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
