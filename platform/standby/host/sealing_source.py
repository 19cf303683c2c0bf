"""Where the sealing key comes from: the environment itself, a file, or what a command prints."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Final

from pydantic import SecretStr

from standby.domain.errors import ConfigurationError
from standby.host.sealing import SealingKey

COMMAND_LIMIT_S: Final = 30.0
_LONGEST: Final = 64 * 1024

ELSEWHERE: Final = ("STANDBY_SECRETS_KEY_FILE", "STANDBY_SECRETS_KEY_COMMAND")
VARIABLES: Final = ("STANDBY_SECRETS_KEY", *ELSEWHERE)


def load_sealing_key(text: SecretStr | None, file: Path | None, command: str | None) -> SealingKey | None:
    """Return the key from the one source that is set, or None. Blocks while the command runs, 30 s at most.

    Raises ConfigurationError for two sources at once, and for one that yields no key; never with anything that was read.
    """
    chosen = [name for name, value in zip(VARIABLES, (text, file, command), strict=True) if value is not None]
    if len(chosen) > 1:
        raise ConfigurationError(
            f"{' and '.join(chosen)} are both set, and only one can hold the sealing key",
            remedy=f"keep one of them: {chosen[0]}",
        )
    if text is not None:
        return SealingKey.parse(text.get_secret_value())
    if file is not None:
        return SealingKey.parse(_read(file))
    return None if command is None else SealingKey.parse(_ask(command))


def _read(file: Path) -> str:
    try:
        with file.expanduser().open(encoding="ascii") as handle:
            return handle.read(_LONGEST)
    except OSError as error:
        raise _useless("STANDBY_SECRETS_KEY_FILE", f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise _useless("STANDBY_SECRETS_KEY_FILE", f"{file} holds no text") from None


def _ask(command: str) -> str:
    """Run the command without a shell; what it prints on standard error is its own and goes to ours."""
    name = "STANDBY_SECRETS_KEY_COMMAND"
    try:
        words = shlex.split(command)
        done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=COMMAND_LIMIT_S, check=False)
    except (ValueError, IndexError):
        raise _useless(name, "it is no command line") from None
    except OSError as error:
        raise _useless(name, f"it cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise _useless(name, f"it printed nothing complete within {COMMAND_LIMIT_S:.0f} s") from None
    if done.returncode != 0:
        raise _useless(name, f"it ended with code {done.returncode}")
    try:
        return done.stdout[:_LONGEST].decode("ascii")
    except UnicodeDecodeError:
        raise _useless(name, "it printed no text") from None


def _useless(name: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"{name} yields no sealing key: {why}",
        remedy="let it yield 32 random bytes in URL-safe base64, the same on every gateway and node",
    )
