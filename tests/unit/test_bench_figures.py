"""A benchmark that measured nothing fails: it prints no zero, no infinity and nothing that is no number."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[1] / "bench"
SCRIPTS = sorted(path for path in BENCH.glob("*.py") if '__name__ == "__main__"' in path.read_text())


def told(figures: str) -> subprocess.CompletedProcess[str]:
    """What a script of the benches prints that measured these figures."""
    code = f"import sys; sys.path.insert(0, {str(BENCH)!r}); from figures import tell; tell({figures})"
    return subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=240)


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    from figures import no_figures

    return no_figures


def test_a_zero_is_not_printed_as_if_it_were_a_figure() -> None:
    done = told("{'written_per_s': 7079, 'runs': [{'read_per_s': 0.0}]}")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == "this run measured nothing: runs.0.read_per_s = 0.0\n"
    done = told("{'written_per_s': 7079, 'stale': 0, 'seeds': [0, 1]}")
    assert done.returncode == 0
    assert '"stale": 0' in done.stdout


@pytest.mark.parametrize(
    "name",
    [*("planned_per_s", "ratio", "ratios", "ratio_read_to_bare", "median_ratio", "help_ratio", "wall_s", "p95", "ms")],
)
def test_rates_times_and_ratios_are_above_zero(no_figures: Any, name: str) -> None:
    for value in (0, 0.0, -1.5, [2.0, 0.0], {"1": 0.0} if name != "ratios" else [0]):
        assert list(no_figures({name: value}))
    assert not list(no_figures({name: [0.001, 5]}))


def test_everything_is_finite_and_there_is_something(no_figures: Any) -> None:
    for value in (math.inf, -math.inf, math.nan):
        assert list(no_figures({"items": value, "steps": 1}))
    assert list(no_figures({}))
    assert list(no_figures({"runs": []}))
    assert list(no_figures({"equal": True}))
    assert not list(no_figures({"stale": 0, "gain": -0.1, "steal_s": 0.0, "dropped_per_s": 0, "equal": False}))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_every_script_shows_its_figures_through_that_check(path: Path) -> None:
    text = path.read_text()
    printed = [line for line in text.splitlines() if re.search(r"print\(.*(dumps|encode)\(", line)]
    assert all("stderr" in line or "--way" in text for line in printed), printed
    assert re.search(r"\btell\(|\bmain_with\(|^from demo_stage", text, re.MULTILINE)


def test_figures_are_told_with_the_machine_that_they_are_of() -> None:
    facts = json.loads(told("{'written_per_s': 7079}").stdout)["machine"]
    assert facts["cores"] >= 1
    assert facts.keys() == {"cpu", "cores", "load", "steal_percent"}


def test_medians_of_pairs_and_quantiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    import figures

    assert figures.median_of([3.4, 1.0, 9.0]) == 3
    assert figures.median_ratio([2.0, 9.0, 8.0], [1.0, 3.0, 2.0]) == 3.0
    assert figures.quantiles(range(1, 101), 0.5, 0.95) == {"p50": 51, "p95": 96, "max": 100}


def test_options_are_read_by_their_defaults_types_and_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    from figures import read_options

    table: dict[str, Any] = {
        "pairs": (5, "runs of each"),
        "seeds": [1, 2],
        "only": [],
        "tiny": False,
        "sft_steps": int,
        "engine": {"choices": ["fake", "torch"], "default": "fake"},
        "overrides": {"flag": "-s", "action": "append", "default": []},
    }
    default = {"pairs": 5, "seeds": [1, 2], "only": [], "tiny": False, "sft_steps": None, "engine": "fake"}
    assert vars(read_options("A bench.", [], **table)) == {**default, "overrides": []}
    words = ["--pairs", "2", "--seeds", "7", "8", "9", "--only", "a", "b", "--tiny", "--sft-steps", "3"]
    chosen = {"pairs": 2, "seeds": [7, 8, 9], "only": ["a", "b"], "tiny": True, "sft_steps": 3, "engine": "torch"}
    words += ["--engine", "torch", "-s", "a=1", "-s", "b=2"]
    assert vars(read_options("A bench.", words, **table)) == {**chosen, "overrides": ["a=1", "b=2"]}
    with pytest.raises(SystemExit):
        read_options("A bench.", ["--pairs", "many"], **table)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_every_script_reads_its_options_through_that_table(path: Path) -> None:
    assert "ArgumentParser(" not in path.read_text()
