"""From the words of a command line to both sides of a comparison, opened for as long as it lasts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from standby.bench.baseline_container import SERVED_NAME
from standby.bench.compare.subject import Plain, Subject
from standby.bench.compare.subject_container import PREFIX, ContainerSubject, baseline
from standby.bench.compare.subject_standby import standby_subject
from standby.bench.session import Session
from standby.bench.targets.choice import SAGEMAKER, Chosen, TargetOptions, choose
from standby.domain.errors import InvalidInput

BASELINE: Final = "container-style baseline"


@dataclass(frozen=True, slots=True)
class SideOptions:
    """How sides get cold, and how the baseline lives; times in seconds."""

    targets: TargetOptions
    rung: str = "cold"
    limit_s: float = 120.0
    evict: bool = False
    idle_s: float | None = None
    keep: str = "5s"
    slots: int = 4


@dataclass(frozen=True, slots=True)
class Asked:
    """One side as it was named. ``chosen`` None: the baseline, whose URL is known once it runs."""

    word: str
    chosen: Chosen | None

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know."""
        return () if self.chosen is None else self.chosen.notes


def asked(word: str, options: SideOptions, session: Session) -> Asked:
    """Look a side up, outside of an event loop. Raises InvalidInput, NotFound, ConfigurationError as ``choose`` does."""
    if word.startswith(PREFIX):
        if not Path(word.removeprefix(PREFIX)).is_file():
            raise InvalidInput(f"there is no file {word.removeprefix(PREFIX)!r}", remedy="give container:MODEL.gguf")
        return Asked(word, None)
    return Asked(word, choose(word, options.targets, session))


@asynccontextmanager
async def opened(side: Asked, options: SideOptions, session: Session, say: Callable[[str], None]) -> AsyncIterator[Subject]:
    """Yield the side, ready to be asked; closed at the end."""
    if side.chosen is None:
        async with _container(side.word, options, session, say) as container:
            yield container
        return
    chosen = side.chosen
    try:
        if chosen.ours and chosen.endpoint is not None:
            async with standby_subject(
                chosen.target,
                session,
                chosen.endpoint,
                rung=options.rung,
                limit_s=options.limit_s,
                evict=options.evict,
            ) as subject:
                yield subject
        else:
            yield Plain(chosen.target, _kind(side.word), options.idle_s)
    finally:
        await chosen.target.close()


@asynccontextmanager
async def _container(
    word: str, options: SideOptions, session: Session, say: Callable[[str], None]
) -> AsyncIterator[ContainerSubject]:
    model = Path(word.removeprefix(PREFIX))
    async with baseline(model, keep=options.keep, slots=options.slots, say=say) as program:
        known = replace(options.targets, model=SERVED_NAME, key=None, shadow=False)
        target = choose(f"{program.url}/v1", known, session).target
        named = replace(target, name=BASELINE)  # type: ignore[type-var]
        try:
            yield ContainerSubject(named, program, model.name, options.keep, options.limit_s)
        finally:
            await named.close()


def _kind(word: str) -> str:
    return f"SageMaker endpoint {word.removeprefix(SAGEMAKER)!r}" if word.startswith(SAGEMAKER) else f"a server at {word}"
