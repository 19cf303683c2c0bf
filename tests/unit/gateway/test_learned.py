"""What is learnt of an engine: against numpy's least squares over the list of all answers, which the fit never keeps."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from standby.domain.model import EngineKind
from standby.gateway import learned
from standby.gateway.learned import Answered, Estimate, Speed

pytestmark = pytest.mark.decision

_TRUE = Speed(0.2, 1.5, 0.1, 0.03, 0.01)


def _answer(speed: Speed, prompt: int, others: int, tokens: int, noise: float = 1.0) -> Answered:
    first = (speed.first_s + speed.prompt_s * prompt / 1000 + speed.other_s * others) * noise
    return Answered(
        prompt, tokens, others, first, first + (tokens - 1) * (speed.token_s + speed.token_other_s * others) * noise
    )


def _learnt(answers: list[Answered], engine: EngineKind | None = EngineKind.VLLM, *, every_s: float = 1.0) -> Estimate:
    estimate = learned.unknown(engine)
    for number, answer in enumerate(answers):
        estimate = learned.learn(estimate, answer, number * every_s)
    return estimate


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(8, 120))
def test_the_fit_is_the_weighted_least_squares(seed: int, count: int) -> None:
    """The oracle weighs a list of rows by their age and solves with numpy; prior points are rows of it."""
    chance = random.Random(seed)
    answers = [
        _answer(_TRUE, chance.randint(1, 4000), chance.randint(0, 3), chance.randint(30, 100), chance.uniform(0.7, 1.3))
        for _ in range(count)
    ]
    estimate, sizes, fades = learned.unknown(EngineKind.VLLM), [], []
    for number, answer in enumerate(answers):
        forecast = learned.predict(estimate, answer.prompt_tokens, answer.others).first_s
        surprised = not forecast <= 2 * answer.first_byte_s <= 4 * forecast
        fades.append(learned.FADE * 0.5 ** (1.0 / learned.HALF_LIFE_S) * (learned.SURPRISED if surprised else 1.0))
        sizes.append(max(forecast, answer.first_byte_s / 4) if number else answer.first_byte_s)
        estimate = learned.learn(estimate, answer, number)
    x = np.array([[1.0, one.prompt_tokens / 1000, one.others] for one in answers])
    y = np.array([one.first_byte_s for one in answers])
    age = np.array([np.prod(fades[number + 1 :]) for number in range(count)])
    weights = age / (np.array(sizes) + 0.005) ** 2
    prior = np.array(estimate.prior[:3])
    slower = float((weights @ y) / (weights @ (x @ prior)))
    points = np.array([[1.0, 0.1, 0.0], [1.0, 2.0, 0.0], [1.0, 0.1, 3.0]])
    said = slower * (points @ prior)
    root = np.sqrt(np.concatenate([weights, learned.PRIOR_WORTH / (said + 0.005) ** 2]))
    expected, *_ = np.linalg.lstsq(np.vstack([x, points]) * root[:, None], np.concatenate([y, said]) * root, rcond=None)
    assume((expected > 0).all())
    assert np.allclose(estimate.speed[:3], expected, rtol=1e-5)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_it_finds_what_an_engine_is_like(seed: int) -> None:
    """From sixty answers, on a machine far slower than the prior, with a fifth of noise."""
    chance = random.Random(seed)
    estimate = _learnt(
        [
            _answer(_TRUE, chance.choice([50, 200, 1000, 3000]), chance.randint(0, 3), 40, chance.uniform(0.8, 1.2))
            for _ in range(60)
        ]
    )
    for prompt in (100, 1000, 3000):
        forecast = learned.predict(estimate, prompt, 1)
        true = _answer(_TRUE, prompt, 1, 2)
        assert forecast.first_s == pytest.approx(true.first_byte_s, rel=0.25)
        assert forecast.token_s == pytest.approx(0.04, rel=0.25)


@given(
    st.lists(
        st.builds(
            Answered, st.integers(0, 9000), st.integers(0, 500), st.integers(0, 50), st.floats(0.0, 60.0), st.floats(0.0, 90.0)
        ),
        max_size=30,
    )
)
@settings(max_examples=60, deadline=None)
def test_no_forecast_is_negative_or_falls_with_the_prompt(answers: list[Answered]) -> None:
    estimate = _learnt([one._replace(lasted_s=max(one.lasted_s, one.first_byte_s)) for one in answers])
    forecasts = [learned.predict(estimate, prompt, others) for prompt in (0, 100, 5000) for others in (0, 8)]
    assert all(one.first_s >= 0 and one.token_s >= 0 for one in forecasts)
    assert forecasts[0].first_s <= forecasts[2].first_s <= forecasts[4].first_s


def test_an_engine_that_becomes_slower_is_forecast_so() -> None:
    slower = Speed(*(value * 3 for value in _TRUE))
    estimate = _learnt([_answer(_TRUE, 500, 0, 20)] * 100 + [_answer(slower, 500, 0, 20)] * 100)
    assert learned.predict(estimate, 500, 0).first_s == pytest.approx(3 * 0.95, rel=0.2)


def test_the_first_answer_scales_the_prior_as_a_whole() -> None:
    """A short prompt on a machine ten times slower says what a long one will take."""
    prior = learned.unknown(EngineKind.LLAMA_CPP)
    tenfold = Speed(*(value * 10 for value in prior.prior))
    estimate = learned.learn(prior, _answer(tenfold, 50, 0, 20), 0.0)
    assert learned.predict(estimate, 2000, 0).first_s == pytest.approx(learned.predict(prior, 2000, 0).first_s * 10, rel=0.2)


def test_whole_answers_teach_the_sum_of_both_parts() -> None:
    """They come in a single piece and do not say when their first token was ready."""
    answers = []
    for number in range(80):
        streamed = _answer(_TRUE, 200, 0, (10, 60, 200)[number % 3])
        answers.append(streamed._replace(first_byte_s=streamed.lasted_s, streamed=False))
    forecast = learned.predict(_learnt(answers), 200, 0)
    for tokens in (60, 200):
        true = _answer(_TRUE, 200, 0, tokens).lasted_s
        assert forecast.first_s + forecast.token_s * (tokens - 1) == pytest.approx(true, rel=0.35)


def test_a_whole_answer_that_trickles_does_not_tell_its_first_token() -> None:
    """However long its bytes take on the way: the first one came when the engine had all of it."""
    known = _learnt([_answer(_TRUE, 200, 0, 20)] * 20)
    before = learned.predict(known, 200, 0)
    trickled = Answered(200, 100, 0, 8.0, 10.0, streamed=False)
    stream, whole = (
        learned.predict(learned.learn(known, trickled._replace(streamed=streamed), 20.0), 200, 0) for streamed in (True, False)
    )
    assert stream.first_s > whole.first_s
    assert stream.token_s < before.token_s < whole.token_s


def test_what_is_old_or_rests_on_little_is_uncertain() -> None:
    assert learned.unknown(None).uncertain(0.0)
    estimate = _learnt([_answer(_TRUE, 500, 0, 20)] * 20)
    assert not estimate.uncertain(20.0)
    assert estimate.uncertain(20.0 + learned.STALE_S)


def test_slowness_does_not_depend_on_the_length() -> None:
    estimate = _learnt([_answer(_TRUE, prompt, 0, 20) for prompt in (50, 500, 3000) for _ in range(20)])
    slow = [learned.slowness(estimate, _answer(_TRUE, prompt, 0, 20, noise=3.0)) for prompt in (50, 500, 3000)]
    usual = _answer(_TRUE, 256, 0, 20, noise=3.0).first_byte_s
    assert slow == pytest.approx([usual] * 3, rel=0.2)
