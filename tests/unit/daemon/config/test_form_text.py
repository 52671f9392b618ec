"""Experiment files for the studio: absolute paths, inlined files, `${...}` as written, and refused secrets."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from synthetic.daemon.experiment_files import TEXT

from rftd.daemon.config.issue import ConfigErrors
from rftd.daemon.config.loading import form_text, load_text


def test_a_file_for_the_studio_resolves_as_the_file_itself(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("{}")
    (tmp_path / "mine.py").write_text("def short(response, truth, task):\n    return 1.0\n")
    tree = yaml.safe_load(TEXT)
    taskset = tree["buffer"]["explorer_input"]["taskset"]
    taskset |= {"path": "rows.jsonl", "default_reward_fn_type": "./mine.py:short"}
    text = yaml.safe_dump(tree)
    given = form_text(text, "exp.yaml", environ={}, cwd=tmp_path)
    expected = load_text(text, "exp.yaml", environ={}, cwd=tmp_path)
    assert load_text(given, "exp.yaml", environ={}, cwd=Path("/nowhere")).config == expected.config


def test_an_interpolation_for_the_studio_stays_as_written(tmp_path: Path) -> None:
    paths = "checkpoint_root_dir: ${oc.env:ROOT}\nmodel: {model_path: '${oc.env:MODEL}/base'}\nname: ${oc.env:NAME}\n"
    given = yaml.safe_load(form_text(paths, "exp.yaml", environ={"ROOT": "/secret"}, cwd=tmp_path))
    assert given == {
        "checkpoint_root_dir": "${oc.env:ROOT}",
        "model": {"model_path": "${oc.env:MODEL}/base"},
        "name": "${oc.env:NAME}",
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("model: {api_key: sk-123}", "a secret must not be written into the file"),
        ("model: [", ""),
        ("", "the file is empty"),
        ("buffer: {explorer_input: {taskset: {default_reward_fn_type: ./none.py:short}}}", "none.py"),
    ],
)
def test_a_file_that_the_studio_cannot_begin_with_is_refused_with_its_place(
    tmp_path: Path, text: str, problem: str
) -> None:
    with pytest.raises(ConfigErrors) as caught:
        form_text(text, "exp.yaml", environ={}, cwd=tmp_path)
    assert problem in str(caught.value)
    assert "sk-123" not in str(caught.value)
