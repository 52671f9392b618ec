"""Sparklines, quantities, and errors as text and as JSON."""

from __future__ import annotations

import json
import math

from rftd.daemon.cli.output.failure import as_json, as_text, leaves
from rftd.daemon.cli.output.quantity import age, number, size, sparkline
from rftd.ops.clock import ManualClock
from rftd.ops.errors import ConflictError, NotFoundError


def test_sparkline_spans_its_scale() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([0.5], low=0, high=1) == "▅"
    assert sparkline([2, -1], low=0, high=1) == "█▁"
    assert sparkline([3, 3]) == "▅▅"
    assert sparkline([]) == ""
    assert sparkline([0, math.nan, 1]) == "▁ █"
    assert sparkline([math.nan]) == " "


def test_sparkline_is_never_wider_than_asked() -> None:
    for count in (1, 31, 32, 33, 1000):
        assert len(sparkline(list(range(count)), width=32)) == min(count, 32)
    assert sparkline([0] * 50 + [1] * 50, width=2) == "▁█"


def test_quantities() -> None:
    clock = ManualClock()
    then = clock.now_ns()
    for seconds, text in ((0, "0s"), (100, "100s"), (120, "2m"), (7200, "2h"), (200_000, "2d")):
        later = ManualClock(clock.now_ns() + seconds * 10**9)
        assert age(then, later) == text
    assert age(None, clock) == "-"
    assert number(None) == "-"
    assert number(0.12345) == "0.123"
    assert (size(10), size(1536), size(3 * 1024**3)) == ("10 B", "1.5 KiB", "3.0 GiB")
    assert (size(0), size(1023), size(1024), size(1024**5)) == ("0 B", "1023 B", "1.0 KiB", "1024.0 TiB")
    assert [size(1024**power - 1) for power in (2, 3, 4)] == ["1.0 MiB", "1.0 GiB", "1.0 TiB"]


def test_errors_as_text_and_json() -> None:
    error = ConflictError("it is finished", where="exp", field="state", fix="submit another")
    assert as_text(error) == (
        "error[RFTD-CON-001] state: it is finished\n  --> exp\n  fix: submit another\n  more: rftd explain RFTD-CON-001"
    )
    assert json.loads(as_json(error)) == {
        "exit": 5,
        "errors": [
            {
                "code": "RFTD-CON-001",
                "what": "it is finished",
                "field": "state",
                "where": "exp",
                "fix": "submit another",
            }
        ],
    }


def test_the_leaves_of_a_group() -> None:
    inner = NotFoundError("x")
    assert next(leaves(ExceptionGroup("a", [ExceptionGroup("b", [inner]), ValueError()]))) is inner
