"""How an engine's first process enters its cgroup before it does anything. Standard library alone: it runs inside engines."""

import os
from collections.abc import Mapping

CGROUP_VARIABLE = "STANDBY_ENGINE_CGROUP"


def enter(environment: Mapping[str, str] = os.environ) -> bool:
    """Move this process into the cgroup that the agent names in the environment; False when it named none or may not.

    Called right after fork or exec: all that the process does and starts later is then counted where it belongs. The agent
    moves it as well, which is enough but leaves the first milliseconds to the agent's own cgroup.
    """
    place = environment.get(CGROUP_VARIABLE)
    if not place:
        return False
    try:
        descriptor = os.open(os.path.join(place, "cgroup.procs"), os.O_WRONLY | os.O_CLOEXEC)  # noqa: PTH118 - no pathlib: it must stay cheap in a forked child
    except OSError:
        return False
    try:
        os.write(descriptor, b"0")
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
