"""What is known of an engine's speed: first-token seconds by prompt and load, seconds per token by load. Pure.

Two weighted least-squares fits that forget: ``first = a + b · prompt + c · others`` and ``token = d + e · others``, in sums
that every answer is added to and that fade with each answer and with time. Errors count relative to the size of what was
measured, or long prompts would drown short ones. Until there is data the fit follows a prior's shape; the first answers
scale the prior as a whole, since a machine that is slow at one thing is slow at most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from standby.domain.model import EngineKind

FADE: Final = 0.98
HALF_LIFE_S: Final = 600.0
# What was known is worth less after an answer that took twice or half as long as forecast: the engine may have changed.
SURPRISED: Final = 0.9
THIN: Final = 5.0
STALE_S: Final = 120.0
# How many answers the prior's shape is worth, at each of its points.
PRIOR_WORTH: Final = 0.5
# Seconds below which differences between first tokens, and between single tokens, do not matter.
_FIRST_FINE_S: Final = 0.005
_TOKEN_FINE_S: Final = 0.001
_USUAL_PROMPT: Final = 256


class Speed(NamedTuple):
    """``first_s`` to the first token of an empty prompt, ``prompt_s`` more per 1000 prompt tokens, ``other_s`` more for
    each other request; ``token_s`` per token, ``token_other_s`` more for each other request."""

    first_s: float
    prompt_s: float
    other_s: float
    token_s: float
    token_other_s: float


# Orders of magnitude only. The two for GPUs meet at about 2000 prompt tokens.
_PRIORS: Final[Mapping[EngineKind | None, Speed]] = MappingProxyType(
    {
        EngineKind.VLLM: Speed(0.03, 0.10, 0.01, 0.015, 0.0005),
        EngineKind.TENSORRT_LLM: Speed(0.07, 0.08, 0.01, 0.012, 0.0005),
        EngineKind.LLAMA_CPP: Speed(0.03, 0.60, 0.05, 0.020, 0.005),
    }
)
_ANY: Final = Speed(0.03, 0.30, 0.03, 0.020, 0.002)
# Where the prior speaks: thousands of prompt tokens, other requests.
_POINTS: Final = ((0.1, 0.0), (2.0, 0.0), (0.1, 3.0))


class Sums(NamedTuple):
    """Weighted sums over what was measured: of 1, x, z, y and products of them; ``answers`` are not weighted."""

    answers: float = 0.0
    w: float = 0.0
    x: float = 0.0
    z: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xz: float = 0.0
    zz: float = 0.0
    xy: float = 0.0
    zy: float = 0.0


class Estimate(NamedTuple):
    """What is known of one backend; make it with ``unknown``. ``at``: when something was last learnt, in seconds."""

    prior: Speed
    speed: Speed
    first: Sums = Sums()
    token: Sums = Sums()
    at: float = -math.inf

    def uncertain(self, now: float) -> bool:
        """Whether it rests on few answers or on old ones."""
        return self.first.answers < THIN or now - self.at > STALE_S


class Forecast(NamedTuple):
    """Seconds to the first token, and for each one after it."""

    first_s: float
    token_s: float


class Answered(NamedTuple):
    """What an answer taught: times in seconds from the dispatch; ``others``: requests that ran beside it.

    ``streamed``: its first byte was its first token's; else it came when all of it was there.
    """

    prompt_tokens: int
    completion_tokens: int
    others: int
    first_byte_s: float
    lasted_s: float
    streamed: bool = True


def unknown(engine: EngineKind | None) -> Estimate:
    """Return the estimate of an engine that has not answered yet."""
    prior = _PRIORS.get(engine, _ANY)
    return Estimate(prior, prior)


def predict(estimate: Estimate, prompt_tokens: float, others: float) -> Forecast:
    """Return what a request with ``prompt_tokens`` may expect beside ``others``."""
    first_s, prompt_s, other_s, token_s, token_other_s = estimate.speed
    return Forecast(first_s + prompt_s * prompt_tokens / 1000 + other_s * others, token_s + token_other_s * others)


def slowness(estimate: Estimate, answer: Answered) -> float:
    """Return the seconds to the first token that a usual prompt would have had to wait where this one had to.

    Only the proportions of the forecasts count: when an engine becomes slower as a whole, and the forecasts with it, this
    does not look like it was always so.
    """
    alone = predict(estimate, answer.prompt_tokens, 0)
    usual_s = max(1e-6, predict(estimate, _USUAL_PROMPT, 0).first_s)
    if _tells_first(answer):
        return max(1e-6, answer.first_byte_s * usual_s / max(1e-6, alone.first_s))
    whole_s = alone.first_s + alone.token_s * max(0, answer.completion_tokens - 1)
    return max(1e-6, answer.lasted_s * usual_s / max(1e-6, whole_s))


def learn(estimate: Estimate, answer: Answered, now: float, *, fit: bool = True) -> Estimate:
    """Return the estimate after one more answer; without ``fit`` what it forecasts stays as it was, which is cheaper.

    An answer that came in a single piece does not say when its first token was ready: what it took beyond the forecast is
    laid to the greater part of it, to each as to the square of its size, and counts as much.
    """
    first_s, token_s, share = _measured(estimate, answer)
    x, z = answer.prompt_tokens / 1000, float(answer.others)
    forecast = predict(estimate, answer.prompt_tokens, z)
    fade = FADE * 0.5 ** (max(0.0, now - estimate.at) / HALF_LIFE_S)
    if not forecast.first_s <= 2 * first_s <= 4 * forecast.first_s:
        fade *= SURPRISED
    first, token = estimate.first, estimate.token
    weight = _weight(first, first_s, forecast.first_s, _FIRST_FINE_S)
    first = _added(first, fade, x, z, first_s, weight if share is None else weight * share)
    if token_s is not None:
        weight = _weight(token, token_s, forecast.token_s, _TOKEN_FINE_S)
        token = _added(token, fade, 0.0, z, token_s, weight if share is None else weight * (1 - share))
    speed = fitted(estimate.prior, first, token) if fit else estimate.speed
    return Estimate(estimate.prior, speed, first, token, now)


def fitted(prior: Speed, first: Sums, token: Sums) -> Speed:
    """Return the least-squares fits through both sums and the prior's scaled points; nothing in it is negative."""
    slower = _ratio(first.y, prior.first_s * first.w + prior.prompt_s * first.x + prior.other_s * first.z)
    for x, z in _POINTS:
        y = slower * (prior.first_s + prior.prompt_s * x + prior.other_s * z)
        first = _added(first, 1.0, x, z, y, PRIOR_WORTH / (y + _FIRST_FINE_S) ** 2)
    if token.w:
        slower = _ratio(token.y, prior.token_s * token.w + prior.token_other_s * token.z)
    for _, z in _POINTS[1:]:
        y = slower * (prior.token_s + prior.token_other_s * z)
        token = _added(token, 1.0, 0.0, z, y, PRIOR_WORTH / (y + _TOKEN_FINE_S) ** 2)
    first_s, prompt_s, other_s = _solve(first)
    token_s, _, token_other_s = _solve(token)
    return Speed(first_s, prompt_s, other_s, token_s, token_other_s)


def _weight(known: Sums, measured: float, forecast: float, fine: float) -> float:
    """Return what makes errors relative: to the forecast, since relative to what was measured the slow would count less."""
    size = max(forecast, measured / 4) if known.w else measured
    return 1.0 / (size + fine) ** 2


def _measured(estimate: Estimate, answer: Answered) -> tuple[float, float | None, float | None]:
    """Return both times, and the share of an undivided answer's news that is about the first; None: they were measured."""
    more = answer.completion_tokens - 1
    if _tells_first(answer):
        decoding = answer.lasted_s - answer.first_byte_s
        return answer.first_byte_s, decoding / more if more > 2 and decoding > 0 else None, None
    first_s, token_s = predict(estimate, answer.prompt_tokens, answer.others)
    decoding = token_s * more
    beyond = answer.lasted_s - first_s - decoding
    share = min(0.999, max(0.001, first_s * first_s / max(1e-12, first_s * first_s + decoding * decoding)))
    return max(first_s / 10, first_s + beyond * share), max(token_s / 10, token_s + beyond * (1 - share) / more), share


def _tells_first(answer: Answered) -> bool:
    """Whether it is known when the first token was ready: of a stream, and of an answer that has no other one."""
    return answer.streamed or answer.completion_tokens <= 1


def _added(sums: Sums, fade: float, x: float, z: float, y: float, w: float) -> Sums:
    wx, wz = w * x, w * z
    return Sums(
        sums.answers * fade + 1.0,
        sums.w * fade + w,
        sums.x * fade + wx,
        sums.z * fade + wz,
        sums.y * fade + w * y,
        sums.xx * fade + wx * x,
        sums.xz * fade + wx * z,
        sums.zz * fade + wz * z,
        sums.xy * fade + wx * y,
        sums.zy * fade + wz * y,
    )


def _ratio(measured: float, said: float) -> float:
    return measured / said if said > 0 and measured > 0 else 1.0


def _solve(s: Sums) -> tuple[float, float, float]:
    """Return constant and slopes of the weighted least squares; a slope that would be negative is left out."""
    vxx, vzz, vxz = s.xx - s.x * s.x / s.w, s.zz - s.z * s.z / s.w, s.xz - s.x * s.z / s.w
    vxy, vzy = s.xy - s.x * s.y / s.w, s.zy - s.z * s.y / s.w
    determinant = vxx * vzz - vxz * vxz
    b = c = -1.0
    if determinant > 1e-9 * vxx * vzz:
        b, c = (vzz * vxy - vxz * vzy) / determinant, (vxx * vzy - vxz * vxy) / determinant
    if b < 0 or c < 0:
        only_x = max(0.0, vxy / vxx) if vxx > 0 else 0.0
        only_z = max(0.0, vzy / vzz) if vzz > 0 else 0.0
        b, c = (only_x, 0.0) if only_x * vxy >= only_z * vzy else (0.0, only_z)
    return max(0.0, (s.y - b * s.x - c * s.z) / s.w), b, c
