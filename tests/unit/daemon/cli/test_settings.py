"""What every verb reads alike: durations, sizes, and options before or after the verb."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from rftd.daemon.cli.settings import Duration, Settings, Size, data_folder, shared_options


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30.0),
        ("30s", 30.0),
        ("500ms", 0.5),
        ("2m", 120.0),
        ("1.5h", 5400.0),
        ("30d", 2_592_000.0),
        (" 7s ", 7.0),
        ("0", 0.0),
        ("0.0s", 0.0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize(
    "text", ["", "s", "-1", "1 s", "1w", "1e3", "1.", ".5", "inf", "nan", "1s1", "1S", "1,5s", "9" * 400]
)
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(click.BadParameter, match="write 30s, 500ms, 2m, 1h or 30d"):
        Duration().convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("17", 17),
        ("17B", 17),
        ("1kB", 1000),
        ("1KB", 1000),
        ("1KiB", 1024),
        ("1.5MiB", 1572864),
        ("500MB", 500_000_000),
        ("2 GiB", 2 * 1024**3),
        ("1TB", 10**12),
        ("1tib", 1024**4),
        (" 3 ", 3),
        ("0.0009kB", 0),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert Size().convert(text, None, None) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "B", "-1", "1 k", "1M", "1PB", "1e3", "1.", "inf", "nan", "1GiBs", "1,5GB", "9" * 400]
)
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(click.BadParameter, match="write 500MB, 2GiB or a number of bytes"):
        Size().convert(text, None, None)


@settings(deadline=None)
@given(st.text(max_size=12))
def test_any_text_is_a_number_or_a_usage_error(text: str) -> None:
    for kind in (Duration(), Size()):
        try:
            value = kind.convert(text, None, None)
        except click.BadParameter:
            continue
        assert 0 <= value < float("inf")


@click.group()
@shared_options
@click.pass_context
def program(ctx: click.Context) -> None:
    ctx.obj = ctx.obj if isinstance(ctx.obj, Settings) else Settings()


@program.command()
@shared_options
@click.pass_obj
def verb(settings: Settings) -> None:
    click.echo(repr(settings))


def settings_of(*words: str) -> str:
    result = CliRunner().invoke(program, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output.strip()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), Settings()),
        (("--server", "http://a"), Settings(server="http://a")),
        (("--data", "d"), Settings(data="d")),
        (("-o", "yaml"), Settings(output="yaml")),
        (("--json",), Settings(output="json")),
        (("--no-color",), Settings(color=False)),
        (("-q",), Settings(verbosity=-1)),
        (("-v",), Settings(verbosity=1)),
        (("-vv",), Settings(verbosity=2)),
        (("--timeout", "2m"), Settings(timeout_s=120.0)),
    ],
)
def test_an_option_counts_before_the_verb_and_after_it(words: tuple[str, ...], expected: Settings) -> None:
    assert settings_of(*words, "verb") == repr(expected)
    assert settings_of("verb", *words) == repr(expected)


def test_after_the_verb_wins_and_what_is_not_given_there_undoes_nothing() -> None:
    assert settings_of("-o", "yaml", "verb", "-o", "jsonl") == repr(Settings(output="jsonl"))
    assert settings_of("--server", "a", "-v", "--json", "verb", "--server", "b") == repr(
        Settings(server="b", verbosity=1, output="json")
    )
    assert settings_of("--data", "d", "--timeout", "1s", "-q", "--no-color", "verb") == repr(
        Settings(data="d", timeout_s=1.0, verbosity=-1, color=False)
    )


@pytest.mark.parametrize(
    ("given_folder", "environ", "folder"),
    [
        ("here", {"RFTD_DATA": "there"}, "here"),
        (None, {"RFTD_DATA": "there"}, "there"),
        (None, {"RFTD_DATA": ""}, ".rftd"),
        (None, {}, ".rftd"),
        ("", {"RFTD_DATA": "there"}, "there"),
    ],
)
def test_the_folder_is_the_options_then_the_environments(
    given_folder: str | None, environ: dict[str, str], folder: str
) -> None:
    assert data_folder(Settings(data=given_folder), environ) == folder


@pytest.mark.parametrize(("output", "machine"), [("table", False), ("json", True), ("jsonl", True), ("yaml", True)])
def test_everything_but_a_table_is_for_programs(output: str, machine: bool) -> None:
    assert Settings(output=output).machine_readable is machine
