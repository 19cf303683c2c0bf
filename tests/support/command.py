"""The command line against a control API of this process: ``await standby(control, "models", "list")``."""

from __future__ import annotations

import asyncio
from typing import Any

from typer.testing import CliRunner

from standby.cli.main import app
from support.control_api import Control


async def standby(control: Control, *words: str, who: str = "one", stdin: bytes | None = None) -> Any:
    """Run the command in a thread, as the server runs in this one."""
    arguments = ["--url", control.url, "--key", control.keys[who], *words]
    return await asyncio.to_thread(CliRunner().invoke, app, arguments, input=stdin)
