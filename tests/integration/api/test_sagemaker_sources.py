"""The places of a model as SageMaker names them, against a real store."""

from __future__ import annotations

from pathlib import Path

from support.control_api import control_api
from support.gguf_builder import gguf
from support.s3_server import s3_server


async def test_a_model_is_registered_from_sagemakers_shapes(tmp_path: Path) -> None:
    async with s3_server(tmp_path, "models") as s3, control_api(tmp_path, environment=s3.env()) as control:
        await s3.upload("models", "m/model.gguf", gguf())
        folder = {"S3Uri": "s3://models/m/", "S3DataType": "S3Prefix", "CompressionType": "None"}
        single = {"S3Uri": "s3://models/m/model.gguf", "S3DataType": "S3Object", "CompressionType": "None"}

        whole = await control.call("one", "POST", "/api/v1/models", {"name": "a", "ModelDataSource": {"S3DataSource": folder}})
        other = {"q4": {"ModelDataSource": {"S3DataSource": single}}}
        with_weights = await control.call(
            "one", "POST", "/api/v1/models", {"name": "b", "source_uri": "s3://models/m/", "weights": other}
        )
        packed = await control.call("one", "POST", "/api/v1/models", {"name": "c", "ModelDataUrl": "s3://models/m/model.gguf"})

    assert (whole.status_code, whole.json()["source_uri"]) == (201, "s3://models/m/"), whole.text
    assert with_weights.status_code == 201, with_weights.text
    assert with_weights.json()["weights"]["q4"]["source_uri"] == "s3://models/m/model.gguf"
    assert packed.status_code == 422, packed.text
