"""How an error is told on the command line: what failed, then what to do."""

from __future__ import annotations

import json
import sys

from standby.domain.errors import StandbyError


def report(error: StandbyError, *, as_json: bool) -> None:
    """Print ``error`` on standard error."""
    if as_json:
        envelope = {"message": error.message, "code": error.code, "remedy": error.remedy, "exit_code": error.exit_code}
        print(json.dumps({"error": envelope}, ensure_ascii=False), file=sys.stderr)
        return
    print(f"error: {error.message}", file=sys.stderr)
    if error.remedy:
        print(f"  try: {error.remedy}", file=sys.stderr)
