"""``standby aws``: the lines point a shell's AWS tools here, with one pair of keys that is made once."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from support.command import standby
from support.control_api import ONE, Control
from support.waiting import until


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    monkeypatch.setenv("STANDBY_STATE_DIR", str(folder))
    return folder


async def variables(control: Control, *words: str) -> dict[str, str]:
    answer = await standby(control, *words, "aws", "--json", who="admin")
    assert answer.exit_code == 0, answer.output
    return dict(json.loads(answer.stdout))


async def shell(script: str, **environment: str) -> str:
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", script, stdout=asyncio.subprocess.PIPE, env={"PATH": os.environ["PATH"], **environment}
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()


async def test_the_lines_set_and_take_back_what_aws_tools_read(control: Control) -> None:
    lines = (await standby(control, "aws", who="admin")).stdout
    back = (await standby(control, "aws", "--unset", who="admin")).stdout

    for quoted in ('eval "$lines"', "eval $lines"):
        got = await shell(f"{quoted}; env", lines=lines, AWS_SESSION_TOKEN="left over")
        for name, value in (await variables(control)).items():
            assert f"{name}={value}\n" in got
        assert "\nAWS_SESSION_TOKEN=" not in got
    assert "\nAWS_" not in await shell('eval "$lines"; eval "$back"; unset lines back; env', lines=lines, back=back)


async def test_the_pair_is_made_once_and_again_when_it_is_no_longer_good(control: Control, state: Path) -> None:
    first, again = await variables(control), await variables(control)
    assert first == again
    assert first["AWS_DEFAULT_REGION"] == first["AWS_REGION"] == "us-east-1"
    assert first["AWS_ENDPOINT_URL_SAGEMAKER"] == first["AWS_ENDPOINT_URL_STS"] == control.url
    assert stat.S_IMODE((state / "aws.json").stat().st_mode) == 0o600
    kept = [entry.value for entry in (await control.tables.access_keys.list()).values()]
    assert [(key.id, key.tenant, key.name) for key in kept] == [(first["AWS_ACCESS_KEY_ID"], ONE, "standby-aws")]

    await control.call("admin", "DELETE", f"/api/v1/access-keys/{first['AWS_ACCESS_KEY_ID']}")
    after = await variables(control)
    assert after["AWS_ACCESS_KEY_ID"] != first["AWS_ACCESS_KEY_ID"]

    (state / "aws.json").write_text("[]")
    assert (await variables(control))["AWS_ACCESS_KEY_ID"] != after["AWS_ACCESS_KEY_ID"]


async def test_each_tenant_has_a_pair_of_its_own(control: Control) -> None:
    own, others = await variables(control), await variables(control, "--tenant", "999999999999")

    assert own["AWS_ACCESS_KEY_ID"] != others["AWS_ACCESS_KEY_ID"]
    await until(lambda: others["AWS_ACCESS_KEY_ID"] in control.context.copies.access_keys.entries)
    assert control.context.copies.access_keys.entries[others["AWS_ACCESS_KEY_ID"]].value.tenant == "999999999999"
    assert await variables(control) == own


async def test_without_a_sealing_key_it_says_what_is_missing(control: Control) -> None:
    from dataclasses import replace

    from starlette.applications import Starlette

    from standby.gateway.api.routes import api_routes
    from support.control_api import http_server

    async with http_server(Starlette(routes=api_routes(replace(control.context, sealing=None)))) as url:
        answer: Any = await standby(replace(control, url=url), "aws", who="admin")

    assert answer.exit_code == 7
    assert "STANDBY_SECRETS_KEY" in answer.stderr
