"""Runs a module of standby in another interpreter: ``python bootstrap.py ROOTS MODULE ARGUMENTS…``.

ROOTS are the folders that hold standby, joined as in PATH. They are looked through last, so that the engine's packages
win over ours of the same name. Standard library only, Python 3.10.
"""

import os
import runpy
import sys


def main() -> None:
    """Make standby importable, and become MODULE."""
    roots, module = sys.argv[1:3]
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib would cost a start several ms
    # Python looks first where a script lies. Here lie modules such as ``process``, which must not hide anybody's.
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]  # noqa: PTH100
    sys.path.extend(root for root in roots.split(os.pathsep) if root not in sys.path)
    del sys.argv[1:3]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
