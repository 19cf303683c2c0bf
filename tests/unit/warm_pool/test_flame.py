"""A flame graph from a recording's samples: widths by time, names as text only."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

import pytest

from standby.warm_pool.flame import frames_of, svg

RECORDING: dict[str, Any] = {
    "shared": {
        "frames": [
            {"name": "main", "file": "a.py", "line": 1},
            {"name": "<script>alert(1)</script>", "file": "b.py", "line": 2},
            {"name": "rest"},
        ]
    },
    "profiles": [{"name": "Thread 1", "samples": [[0, 1], [0, 1], [0, 2], [0]], "weights": [1.0, 1.0, 1.0, 1.0]}],
}


def test_samples_are_added_up_by_where_they_were_called() -> None:
    root = frames_of(RECORDING)
    main = root.calls["Thread 1"].calls["main (a.py:1)"]
    assert (root.weight, main.weight) == (4.0, 4.0)
    assert {name: frame.weight for name, frame in main.calls.items()} == {
        "<script>alert(1)</script> (b.py:2)": 2.0,
        "rest": 1.0,
    }


def test_the_picture_is_one_file_without_any_script() -> None:
    picture = svg(frames_of(RECORDING), "a <b> & c")
    drawn = ET.fromstring(picture)
    names = {element.tag.rpartition("}")[2] for element in drawn.iter()}
    widths = [box.get("width") for box in drawn.iter("{http://www.w3.org/2000/svg}rect")]
    assert names == {"svg", "g", "rect", "text", "title"}
    assert widths == ["100%", "1199.5", "1199.5", "1199.5", "599.5", "299.5"]
    assert "50.0%" in picture


def test_a_recursion_of_thousands_is_cut_and_no_name_breaks_the_picture() -> None:
    """Python itself allows a thousand calls in each other, and a program may allow itself more."""
    deep = {
        "shared": {"frames": [{"name": "again\x1b[31m"}]},
        "profiles": [{"name": "Thread \x00", "samples": [[0] * 5000], "weights": [2.0]}],
    }
    root = frames_of(deep)
    drawn = ET.fromstring(svg(root, "deep"))
    assert root.weight == 2.0
    assert 100 < len(list(drawn.iter("{http://www.w3.org/2000/svg}rect"))) < 300


def test_nothing_recorded_is_said() -> None:
    assert "no sample" in svg(frames_of({"shared": {"frames": []}, "profiles": []}), "idle")


@pytest.mark.parametrize(
    "content", [{}, {"shared": {"frames": []}, "profiles": [{"name": "t", "samples": [[1]], "weights": [1]}]}, []]
)
def test_what_is_no_recording_is_refused(content: Any) -> None:
    with pytest.raises(ValueError, match="no speedscope recording"):
        frames_of(content)
