"""The way of containers: download model.tar.gz, gunzip and untar it, unpickle the state dict. A child of ``bench_load``.

Every step is the quick one of its kind: boto3's parallel download, Python's tarfile (a third faster than the system's tar
with gzip on the same archive), torch.load of tensors only, which is its default.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import boto3
import torch

from support.load_meter import Meter, arguments, tell


def main() -> None:
    """Measure one load into the empty folder that the parent names."""
    asked = arguments()
    folder = Path(asked["folder"])
    packed = folder / "model.tar.gz"
    client = boto3.client("s3", endpoint_url=asked["endpoint"])
    meter = Meter()
    if asked["idle"]:
        tell(meter.spent())
        return
    client.download_file(asked["bucket"], asked["key"], str(packed))
    meter.mark("downloaded")
    with tarfile.open(packed, "r:gz") as tar:
        tar.extractall(folder, filter="data")
    meter.mark("unpacked")
    weights = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    meter.mark("first_byte")
    parameters = sum(tensor.numel() for tensor in weights.values())
    spent = meter.spent()
    tell({**spent, "parameters": parameters, "tensors": len(weights)})


if __name__ == "__main__":
    main()
