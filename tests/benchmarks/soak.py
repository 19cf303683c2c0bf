"""A soak: ``make soak`` (ten minutes), ``make soak SOAK_ARGS="--seconds 60 --seed 7"``.

Two gateways, two nodes with fake engines, a controller and a nats-server, as real processes, under load over OpenAI's and
SageMaker's routes, while engines, gateways and nodes are killed or told to stop at random. Each request carries a nonce
that comes back in its tokens. Prints one line of JSON last; its exit code is 1 where anything is unexplained.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.soak.run import soak


def main() -> None:
    """Run, print, and say by the exit code whether it was clean."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--logs", type=Path, help="keep the components' logs here")
    asked = parser.parse_args()
    if asked.logs is not None:
        asked.logs.mkdir(parents=True, exist_ok=True)
    soaked = asyncio.run(soak(asked.seconds, asked.seed, asked.logs))
    for trouble in soaked.troubles[:50]:
        print(trouble, file=sys.stderr)
    print(json.dumps(soaked.line()))
    sys.exit(0 if soaked.clean else 1)


if __name__ == "__main__":
    main()
