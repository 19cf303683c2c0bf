"""The state folder of ``standby up``: secrets, connection file, lock."""

from __future__ import annotations

import fcntl
import json
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError

from standby.domain.errors import ConfigurationError
from standby.domain.values import Value
from standby.gateway.keys import generate
from standby.host.files import write_private
from standby.host.sealing import generate_key


class Secrets(Value):
    """What the processes of one deployment share; made once, kept in a file that only the owner reads."""

    node_token: str
    key_pepper: str
    admin_key: str
    secrets_key: str = Field(default_factory=generate_key, description="seals what tenants store")


@dataclass(frozen=True)
class StateDir:
    """Paths below the state folder."""

    root: Path

    @property
    def connection(self) -> Path:
        """Where commands find the gateway and the administrator's key."""
        return self.root / "connection.json"

    @property
    def targets(self) -> Path:
        """Where Prometheus finds what to scrape (``file_sd_configs``)."""
        return self.root / "prometheus-targets.json"

    @property
    def logs(self) -> Path:
        """One log for each child."""
        return self.root / "logs"

    def prepare(self) -> None:
        """Make the folder, readable by its owner only. Raises ConfigurationError."""
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.root.chmod(0o700)
        except OSError as error:
            raise ConfigurationError(
                f"the state folder {self.root} cannot be used: {error.strerror}",
                remedy="name another with --state-dir",
            ) from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for one ``standby up``. Raises ConfigurationError when another one holds it."""
        with (self.root / "lock").open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigurationError(
                    f"another `standby up` uses {self.root}",
                    remedy="stop it, or name another folder with --state-dir",
                ) from None
            yield

    def secrets(self) -> Secrets:
        """Return the deployment's secrets, made at the first call. Raises ConfigurationError when the file is broken."""
        path = self.root / "secrets.json"
        if path.exists():
            try:
                found = Secrets.model_validate_json(path.read_bytes())
            except ValidationError as error:
                raise ConfigurationError(
                    f"{path} is not readable as secrets: {error.error_count()} faults",
                    remedy="restore it, or remove it: then all keys are void",
                ) from error
            if found.model_fields_set != set(Secrets.model_fields):
                # Written by a version that did not know all of them: what was made now has to be the same next time.
                write_private(path, found.model_dump_json())
            return found
        made = Secrets(
            node_token=secrets.token_urlsafe(32),
            key_pepper=secrets.token_urlsafe(32),
            admin_key=generate(),
        )
        write_private(path, made.model_dump_json())
        return made

    def write_targets(self, targets: Iterable[tuple[str, str]]) -> None:
        """Let Prometheus find each ``(component, host:port)``."""
        groups = [{"targets": [address], "labels": {"component": component}} for component, address in targets]
        write_private(self.targets, json.dumps(groups, indent=2))

    def write_connection(self, url: str, api_key: str) -> None:
        """Let the commands find the gateway."""
        write_private(self.connection, json.dumps({"url": url, "api_key": api_key}))
