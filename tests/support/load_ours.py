"""Our way of loading, and our download beside the bare reader. A child of ``bench_load``: one measurement, one line of JSON."""

from __future__ import annotations

import asyncio
import json
import mmap
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from standby.artifacts import volume
from standby.artifacts.fetch import CHUNK_BYTES, PARALLEL, fetch
from standby.artifacts.safetensors import parse_safetensors
from standby.artifacts.sources import Source, open_source
from standby.domain.model import Manifest, ObjectRef
from standby.warm_pool.cache import ArtifactCache
from support.load_bare import read_bare
from support.load_meter import Meter, arguments, tell, touch

_CAPACITY: Final = 1 << 40
_Asked = Mapping[str, Any]


def main() -> None:
    """Do what the parent asks for."""
    asked = arguments()
    _MODES[asked["mode"]](asked)


# ---- loading -----------------------------------------------------------------------------------------------------------


def _cold(asked: _Asked) -> None:
    """From the store into the cache, then mapped; what is mapped was verified as it arrived."""
    manifest = _manifest(asked)
    meter = Meter()
    folder = asyncio.run(_ensured(manifest, Path(asked["root"])))
    meter.mark("downloaded")
    _told(_mapped(manifest, folder, meter), meter)


def _staged(asked: _Asked) -> None:
    """The artifact lies in the node's cache: found there, read into the page cache, mapped."""
    manifest = _manifest(asked)
    meter = Meter()
    folder = asyncio.run(_located(manifest.digest, Path(asked["root"])))
    meter.mark("located")
    _told(_mapped(manifest, folder, meter), meter)


def _reader(asked: _Asked) -> None:
    """Map weights that lie in the cache and keep them until the parent closes standard input."""
    meter = Meter()
    weights = _mapped(_manifest(asked), Path(asked["folder"]), meter)
    _told(weights, meter)
    sys.stdin.read()


def _idle(_asked: _Asked) -> None:
    """Nothing: what the program itself costs."""
    tell(Meter().spent())


async def _ensured(manifest: Manifest, root: Path) -> Path:
    cache = ArtifactCache(root, _CAPACITY)
    await cache.open()
    return await cache.ensure(manifest, _quiet)


async def _located(digest: str, root: Path) -> Path:
    cache = ArtifactCache(root, _CAPACITY)
    await cache.open()
    folder = cache.locate(digest)
    assert folder is not None, f"{digest} is not in {root}"
    # As the ladder does before it starts an engine; quick where the pages are there.
    assert not (await cache.warm(digest)).skipped
    return folder


def _mapped(manifest: Manifest, folder: Path, meter: Meter) -> Sequence[Weights]:
    """Map every tensor and touch each of its pages."""
    weights = [Weights.open(folder / file.path) for file in manifest.files if file.path.endswith(".safetensors")]
    touch(next(iter(weights[0].tensors.values()))[:1])
    meter.mark("first_byte")
    for each in weights:
        for tensor in each.tensors.values():
            touch(tensor)
    return weights


def _told(weights: Sequence[Weights], meter: Meter) -> None:
    """Hand over the figures while the maps are still open."""
    tell(
        {
            **meter.spent(),
            "parameters": sum(each.parameters for each in weights),
            "tensors": sum(len(each.tensors) for each in weights),
            "weights_bytes": sum(each.bytes for each in weights),
        }
    )


@dataclass(frozen=True)
class Weights:
    """A mapped file and a view of each of its tensors; nothing is copied."""

    tensors: Mapping[str, memoryview]
    parameters: int
    bytes: int

    @classmethod
    def open(cls, path: Path) -> Weights:
        """Map the file and check its header."""
        with path.open("rb") as file:
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        facts = parse_safetensors(lambda offset, length: bytes(view[offset : offset + length]), len(view))
        data = view[facts.header_bytes :]
        header = json.loads(bytes(view[8 : facts.header_bytes]))
        spans = {name: header[name]["data_offsets"] for name in facts.names}
        return cls({name: data[begin:end] for name, (begin, end) in spans.items()}, facts.parameter_count, len(view))


# ---- downloading -------------------------------------------------------------------------------------------------------


def _fetch(asked: _Asked) -> None:
    """Our whole download: ranges, retries, hash, flush."""
    manifest = _manifest(asked)
    meter = Meter()
    digests = asyncio.run(_fetched(manifest, Path(asked["into"])))
    tell({**meter.spent(), "sha256": next(iter(digests.values()))})


async def _fetched(manifest: Manifest, into: Path) -> Mapping[str, str]:
    return await fetch(manifest, into, _quiet)


def _transport(asked: _Asked) -> None:
    """Our source and our writing alone: neither hash nor flush."""
    manifest = _manifest(asked)
    ref, into = manifest.objects[0], Path(asked["into"])
    meter = Meter()
    source = open_source(manifest.source_uri, manifest.source)
    volume.create(into / ref.path, ref.size)
    starts = iter(range(0, ref.size, CHUNK_BYTES))
    with ThreadPoolExecutor(PARALLEL) as threads:
        for work in [threads.submit(_carry, source, ref, starts, into) for _ in range(PARALLEL)]:
            work.result()
    tell(meter.spent())


def _carry(source: Source, ref: ObjectRef, starts: Iterator[int], into: Path) -> None:
    for start in starts:
        at = start
        for piece in source.pieces(ref, start, min(CHUNK_BYTES, ref.size - start)):
            at += volume.write_at(into / ref.path, piece, at)


def _bare(asked: _Asked) -> None:
    """The yardstick, with or without hash and flush."""
    ref = _manifest(asked).objects[0]
    meter = Meter()
    sha256 = read_bare(asked["url"], ref.size, Path(asked["into"]) / ref.path, finish=asked["finish"])
    tell({**meter.spent(), "sha256": sha256})


def _manifest(asked: _Asked) -> Manifest:
    return Manifest.model_validate_json(Path(asked["manifest"]).read_bytes())


def _quiet(_done: int, _total: int) -> None:
    """Nobody watches the progress here."""


_MODES: Final[Mapping[str, Callable[[_Asked], None]]] = {
    "cold": _cold,
    "staged": _staged,
    "reader": _reader,
    "idle": _idle,
    "fetch": _fetch,
    "transport": _transport,
    "bare": _bare,
}

if __name__ == "__main__":
    main()
