"""Traces: both formats, and what is said of files that are wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from standby.controller.simulator.trace import Trace, merged, read
from standby.domain.errors import InvalidInput

pytestmark = pytest.mark.decision

COUNTS = "function,mean_duration_ms,480,481,482\nabc,12.5,1,0,2\ndef,7,0,0,5\n"
REQUESTS = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n"
    "2023-11-16 18:15:50.9951690,396,109\n"
    "2023-11-16 18:17:01,1,2\n"
)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    return path


def test_counts_per_minute(tmp_path: Path) -> None:
    trace = read(written(tmp_path, COUNTS))
    assert trace.functions == ("abc", "def")
    assert trace.duration_s == 180
    assert trace.invocations == 8
    first, second = trace.arrivals(1)
    assert [int(time // 60) for time in first] == [0, 2, 2]
    assert [int(time // 60) for time in second] == [2] * 5
    assert np.all(np.diff(second) >= 0)


def test_arrivals_follow_one_stream_of_the_seed(tmp_path: Path) -> None:
    """As the rules say it, word for word: functions in file order draw from one PCG64."""
    rng = np.random.default_rng(1)
    expected = [np.sort((np.repeat(np.arange(3), row) + rng.random(sum(row))) * 60) for row in ([1, 0, 2], [0, 0, 5])]
    found = read(written(tmp_path, COUNTS)).arrivals(1)
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


def test_stamped_requests(tmp_path: Path) -> None:
    trace = read(written(tmp_path, REQUESTS))
    assert trace.functions == ("trace",)
    assert trace.arrivals(1)[0].tolist() == pytest.approx([46.68059, 50.995169, 121])
    assert trace.duration_s == 180
    assert trace.prompt_tokens is not None
    assert trace.prompt_tokens.tolist() == [374, 396, 1]
    assert trace.answer_tokens is not None
    assert trace.answer_tokens.tolist() == [44, 109, 2]


def test_all_functions_together_in_order_of_time() -> None:
    assert merged([np.array([1.0, 5.0]), np.array([1.0, 2.0])]) == ([1.0, 1.0, 2.0, 5.0], [0, 1, 1, 0])
    assert merged(Trace(functions=(), duration_s=60.0, counts=np.zeros((0, 1), dtype=np.int64)).arrivals(1)) == ([], [])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty; give a file with a header"),
        ("function,mean_duration_ms,480\n", "has a header and no function"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "has a header and no request"),
        ("name,480,481\na,1,2\n", "line 1: unknown columns name, 480, 481; give either function"),
        ("function,mean_duration_ms\na,1\n", "line 1: no column of a minute"),
        ("function,mean_duration_ms,480,482\na,1,2,3\n", "line 1: minute 480 is followed by 482; fill the gap"),
        ("function,mean_duration_ms,481,480\na,1,2,3\n", "line 1: minute 481 is followed by 480; sort the columns"),
        ("function,mean_duration_ms,x\na,1,2\n", "line 1: a minute is 'x', not a whole number"),
        (COUNTS + "ghi,1,2,-3,4\n", "line 4: 481 is -3, below 0; drop the line or correct"),
        (COUNTS + "ghi,1,2,,4\n", "line 4: 481 is empty; write 0"),
        (COUNTS + "ghi,1,2,1.5,4\n", "line 4: 481 is '1.5', not a whole number"),
        (COUNTS + "ghi,1,2\n", "line 4: 3 columns where the header has 5"),
        (COUNTS + "abc,1,2,3,4\n", "line 4: function 'abc' was on line 2 already"),
        (COUNTS + ",1,2,3,4\n", "line 4: the function has no name"),
        (REQUESTS + "2023-11-16 18:16:59,1,2\n", "line 5: 2023-11-16 18:16:59 is 2.000 s before the line above; sort"),
        (REQUESTS + "yesterday,1,2\n", "line 5: TIMESTAMP 'yesterday' is no time"),
        (REQUESTS + "2023-11-16T18:18:00+00:00,1,2\n", "changes between having a time zone and none"),
        (REQUESTS + "2023-11-16 18:18:00,1\n", "line 5: 2 columns, not 3"),
        (REQUESTS + "2023-11-16 18:18:00,-1,4\n", "line 5: ContextTokens is -1, below 0"),
    ],
)
def test_what_is_wrong_is_said_with_its_line_and_a_remedy(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        read(written(tmp_path, text))
    assert said in str(raised.value)


def test_a_file_that_is_none_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read: No such file"):
        read(tmp_path / "absent.csv")
    (tmp_path / "zip.csv").write_bytes(b"PK\x03\x04\xff\xfe" * 9)
    with pytest.raises(InvalidInput, match="is no text"):
        read(tmp_path / "zip.csv")
