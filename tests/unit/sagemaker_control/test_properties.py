"""Settings beside a model: read with it, and where there is no model, they may say where one lies."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from standby.artifacts.inspection import ServedElsewhere, inspect
from standby.domain.model import SourceOptions
from support.gguf_builder import gguf

TEXT = b"engine=Python\noption.model_id=s3://models/llama/\n"


def _packed(folder: Path, files: dict[str, bytes]) -> str:
    path = folder / "model.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path.as_uri()


async def test_settings_are_kept_with_the_manifest(tmp_path: Path) -> None:
    uri = _packed(tmp_path, {"model.gguf": gguf(), "serving.properties": TEXT})
    manifest = await inspect(uri, SourceOptions())
    assert manifest.properties == TEXT.decode()
    assert [file.path for file in manifest.files] == ["model.gguf"]


@pytest.mark.parametrize("packed", [True, False])
async def test_settings_without_a_model_are_told(tmp_path: Path, packed: bool) -> None:
    """The commonest artifact of LMI's users holds nothing but where the weights lie."""
    (tmp_path / "f").mkdir()
    (tmp_path / "f/serving.properties").write_bytes(TEXT)
    uri = _packed(tmp_path, {"serving.properties": TEXT}) if packed else (tmp_path / "f").as_uri() + "/"
    with pytest.raises(ServedElsewhere) as error:
        await inspect(uri, SourceOptions())
    assert error.value.properties == TEXT.decode()
