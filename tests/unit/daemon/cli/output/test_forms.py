"""Output for programs and for people: each form holds the same values, and a name is never read as markup."""

from __future__ import annotations

import io
import json
import math
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from rftd.daemon.cli.output.data import emit, emit_line, emitted
from rftd.daemon.cli.output.failure import BUG, INTERRUPTED, fail, parts
from rftd.daemon.cli.output.quantity import BLOCKS, age, number, size, sparkline
from rftd.daemon.cli.output.table import STATE_STYLES, console_of, state, table
from rftd.daemon.cli.settings import Settings
from rftd.ops.clock import ManualClock
from rftd.ops.errors import ConfigError, ConflictError, NotFoundError, RftdError

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


def said(value: Any, form: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    emit(value, Settings(output=form))
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        None,
        0,
        "äöü 模型 \u2028",
        {"items": [1, 2], "next": None},
        [{"a": [1]}, {"b": None}],
        {"a": {"b": True}},
    ],
)
def test_every_form_gives_the_value_back(value: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(said(value, "json", capsys)) == value
    assert yaml.safe_load(said(value, "yaml", capsys)) == value
    lines = [json.loads(line) for line in said(value, "jsonl", capsys).split("\n")[:-1]]
    if isinstance(value, dict) and "items" in value:
        assert lines == value["items"]
    elif isinstance(value, list):
        assert lines == value
    else:
        assert lines == [value]


def test_text_of_any_language_is_written_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("json", "yaml", "jsonl"):
        assert "模型 ä" in said({"name": "模型 ä"}, form, capsys)


def test_a_key_named_items_that_holds_no_list_is_a_key_like_any_other(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"items": {"a": 1}}
    assert json.loads(said(value, "jsonl", capsys)) == value


def test_a_table_is_for_people_and_leaves_standard_output_to_its_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert emitted({"a": 1}, Settings()) is False
    assert capsys.readouterr().out == ""
    assert emitted({"a": 1}, Settings(output="json")) is True
    assert json.loads(capsys.readouterr().out) == {"a": 1}


@settings(deadline=None)
@given(st.lists(VALUES, max_size=4))
def test_a_line_of_json_is_one_line_whatever_it_holds(values: list[Any]) -> None:
    buffer = io.StringIO()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("click.echo", lambda text, nl=True: buffer.write(f"{text}\n" if nl else text))
        for value in values:
            emit_line(value)
    lines = buffer.getvalue().split("\n")
    assert lines.pop() == ""
    assert [json.loads(line) for line in lines] == values


NUMBERS = st.floats(-1e9, 1e9) | st.sampled_from([math.nan, math.inf, -math.inf])


@settings(deadline=None)
@given(st.lists(NUMBERS, max_size=80), st.integers(1, 40))
def test_a_curve_has_a_block_for_each_place_and_a_blank_where_nothing_is_known(values: list[float], width: int) -> None:
    drawn = sparkline(values, width=width)
    assert len(drawn) == min(len(values), width)
    assert set(drawn) <= {*BLOCKS, " "}
    if len(values) <= width:
        assert [block == " " for block in drawn] == [not math.isfinite(value) for value in values]


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=32))
def test_a_higher_value_never_has_a_lower_block(values: list[float]) -> None:
    heights = [BLOCKS.index(block) for block in sparkline(values)]
    for first, second in zip(
        sorted(zip(values, heights, strict=True)), sorted(zip(values, heights, strict=True))[1:], strict=False
    ):
        assert first[1] <= second[1]


@pytest.mark.parametrize("values", [[5.0], [5.0] * 40, [-1e300, -1e300], [0.0, 0.0, math.nan]])
def test_a_flat_curve_lies_in_the_middle(values: list[float]) -> None:
    assert set(sparkline(values)) - {" "} == {BLOCKS[len(BLOCKS) // 2]}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59, "59s"),
        (119, "119s"),
        (120, "2m"),
        (7199, "119m"),
        (7200, "2h"),
        (172_799, "47h"),
        (172_800, "2d"),
    ],
)
def test_an_age_has_two_units_of_a_kind_before_it_names_one(seconds: int, text: str) -> None:
    clock = ManualClock()
    then = clock.now_ns()
    clock.advance(seconds)
    assert age(then, clock) == text


def test_a_time_that_is_still_to_come_is_now() -> None:
    clock = ManualClock()
    assert age(clock.now_ns() + 10**12, clock) == "0s"


@settings(deadline=None)
@given(st.integers(0, 2**60))
def test_a_size_is_short_and_within_a_twentieth_of_a_unit(size_bytes: int) -> None:
    value, unit = size(size_bytes).split(" ")
    factor = 1024 ** ["B", "KiB", "MiB", "GiB", "TiB"].index(unit)
    assert abs(float(value) * factor - size_bytes) <= 0.051 * factor
    assert float(value) < 1024 or unit == "TiB"


def test_numbers_have_as_many_digits_as_asked() -> None:
    assert [number(1 / 3), number(1 / 3, 1), number(2.0, 0), number(None, 7)] == ["0.333", "0.3", "2", "-"]


def plain(*rows: tuple[str | Text, ...], headers: tuple[str, ...] = ("NAME", "N")) -> str:
    buffer = io.StringIO()
    console = Console(file=buffer, width=60, color_system=None)
    console.print(table(headers, rows, right=frozenset({"N"})))
    return buffer.getvalue()


def test_a_table_without_rows_has_its_headers() -> None:
    assert plain().split() == ["NAME", "N"]


def test_brackets_in_a_name_are_no_markup() -> None:
    shown = plain(("[bold]x[/bold]", "1"), ("[red", "20"), (state("running"), "300"))
    assert "[bold]x[/bold]" in shown
    assert "[red" in shown
    rows = [line.rstrip() for line in shown.splitlines()]
    assert [row.endswith(number) for row, number in zip(rows[1:], ("1", "20", "300"), strict=True)] == [True] * 3
    assert len({len(row) for row in rows[1:]}) == 1, "numbers end in one column"


def test_a_long_cell_is_folded_and_loses_nothing() -> None:
    shown = plain(("x" * 150, "1"))
    assert shown.count("x") == 150


def test_states_have_their_colour_and_others_none() -> None:
    for name, style in STATE_STYLES.items():
        assert state(name).style == style
    assert state("unheard of").style == ""


def test_a_pipe_sees_whole_rows_without_colours(capsys: pytest.CaptureFixture[str]) -> None:
    console_of(Settings()).print(table(("A",), [("x" * 140,)]))
    out = capsys.readouterr().out
    assert "x" * 140 in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NotFoundError("x"), 3),
        (ExceptionGroup("tasks", [ValueError("later"), ConflictError("x")]), 5),
        (BaseExceptionGroup("tasks", [KeyboardInterrupt()]), INTERRUPTED),
        (ExceptionGroup("tasks", [ExceptionGroup("inner", [ValueError("boom")])]), BUG),
    ],
)
def test_the_first_error_of_ours_gives_the_status(
    error: BaseException,
    status: int,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert fail(error, ["ls"], clock=ManualClock()) == status
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert bool(list(tmp_path.iterdir())) is (status == BUG)
    assert (err == "") is (status == INTERRUPTED)


def test_an_error_that_stands_for_several_is_each_of_them_and_any_other_itself() -> None:
    class Several(RftdError):
        errors = (ConfigError("one"), ValueError("no error of ours"), ConfigError("two"))

    assert [each.what for each in parts(Several("both"))] == ["one", "two"]
    single = ConfigError("one")
    assert parts(single) == [single]
