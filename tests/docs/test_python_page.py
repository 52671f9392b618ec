"""Notebook, script and page of the Python client, run against a daemon with real workers and fake engines.

Cells are executed as a kernel executes them: one namespace, and the last expression shown, here by `_repr_html_`. No
kernel runs: nbclient and its kernel are forty packages, which nothing else in the lock needs.
"""

from __future__ import annotations

import ast
import json
import linecache
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from synthetic.daemon.hostile_texts import faults_of
from synthetic.daemon.scene import EXPERIMENT, Scene
from synthetic.docs.pages import blocks_of

ROOT = Path(__file__).parents[2]
MOST_LINES = 12

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A daemon whose folder has a small `mine.yaml`."""
    scene = Scene(tmp_path_factory.mktemp("python"))
    scene.write(EXPERIMENT.replace("total_steps: 60", "total_steps: 6").partition("stages:")[0], "mine.yaml")
    with scene.host:
        yield scene


@pytest.fixture
def there(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.chdir(scene.folder)
    monkeypatch.setenv("RFTD_DATA", str(scene.data.root))
    return scene


def shown_of(cell: str, names: dict[str, Any]) -> Any:
    """What a cell shows: the value of its last line, if that is an expression."""
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), names)
    if last is None:
        return None
    assert isinstance(last, ast.Expr)
    return eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_first_notebook_submits_watches_shows_answers_and_compares(there: Scene) -> None:
    notebook = json.loads((ROOT / "examples" / "first_run.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert sum(len(cell.splitlines()) for cell in cells) <= MOST_LINES
    names: dict[str, Any] = {}
    shown = [shown_of(cell, names) for cell in cells]
    pages = [value._repr_html_() for value in shown]
    assert all(faults_of(page) == [] for page in pages)
    run, best, worst, compared = shown
    assert run.summary().state == "completed"
    assert [rollout.reward for rollout in best] >= [rollout.reward for rollout in worst]
    assert all(rollout.answer is not None and rollout.truth for rollout in [*best, *worst])
    assert "first" in pages[0]
    assert best[0].truth in pages[1]
    assert {row["run"] for row in compared.to_dicts()} == {"first", "second"}


def test_the_script_prints_two_runs_at_equal_steps(there: Scene) -> None:
    for name in ("left", "right"):
        there.submit((there.folder / "mine.yaml").read_text(), f"name={name}")
        there.until_ended(name)
    command = [sys.executable, "-P", str(ROOT / "examples" / "compare.py"), "left", "right"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, env=dict(os.environ))
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0].split()[:3] == ["step", "1", "left"]
    assert lines[-1].startswith("right: completed; held out: held ")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_example_of_the_page_runs(there: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = blocks_of(ROOT / "docs" / "python.md", "python")
    assert len(blocks) >= 7
    names: dict[str, Any] = {}
    for number, block in enumerate(blocks):
        file = f"<python.md {number}>"
        # As a kernel does: functions of a cell have source text.
        linecache.cache[file] = (len(block.text), None, block.text.splitlines(keepends=True), file)
        exec(compile(block.text, file, "exec"), names)
    said = capsys.readouterr().out
    assert "RFTD-NOF-001" in said
    assert "critic/rewards/mean" in said
    rewards = [rollout.reward for rollout in names["short"].rollouts(limit=3)]
    assert rewards
    assert all(reward in (-0.001, 0.999) for reward in rewards), rewards
