"""A `${` in data that was submitted stays text, and what is shown of it is a file that says the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from synthetic.daemon.experiment_files import TEXT, overlaid

from rftd.daemon.config.effective.experiment import effective_config
from rftd.daemon.config.grammar import escape, parse_interpolation
from rftd.daemon.config.interpolation import as_written
from rftd.daemon.config.issue import ConfigErrors
from rftd.daemon.config.loading import Submission, check_config, load_text, portable_overrides
from rftd.daemon.config.yaml_text import yaml_text
from rftd.ops import limits

Load = Callable[..., Submission]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"\${name}", "${name}"),
        (r"a \${b} ${project} \${", "a ${b} p ${"),
        (r"\\${project}", r"\p"),
        (r"\\\${project}", r"\${project}"),
        (r"C:\new and \$ and \{ ${project}\.", r"C:\new and \$ and \{ p\."),
    ],
)
def test_an_escaped_one_is_text_by_omegaconfs_rule(load: Load, text: str, value: str) -> None:
    assert load(overrides=[f"labels={{a: '{text}'}}"]).spec.labels == {"a": value}


MARKS: Final = [
    "${",
    "}",
    "\\",
    "$",
    "{",
    "'",
    '"',
    "#",
    ": ",
    ":",
    " ",
    "-",
    ",",
    "[",
    "\n",
    "name",
    "oc.env:HOME",
    "1",
]
TEXTS: Final = st.lists(st.sampled_from(MARKS) | st.text(max_size=3), max_size=8).map("".join)


@settings(deadline=None, max_examples=60)
@given(text=TEXTS)
def test_submitted_text_stays_text_and_is_shown_as_a_file_that_says_the_same(text: str) -> None:
    stop = [text or "x", f"${{{text}"]
    taskset = {"explorer_input": {"taskset": {"rollout_args": {"stop": stop}}}}
    config = {
        **yaml.safe_load(TEXT),
        "monitor": {"monitor_type": "swanlab", "monitor_args": {"${oc.env:HOME}": "key"}},
        "buffer": overlaid(yaml.safe_load(TEXT)["buffer"], taskset),
    }
    try:
        spec = check_config(config)
    except ConfigErrors as refused:
        assert not any(error.code == "RFTD-CFG-006" for error in refused.errors)
        assume(False)
        raise
    assert spec.stages[0].taskset.sampling.stop == tuple(stop)
    assert any("stop[1] holds a `${`, which stays text" in warning for warning in spec.warnings)
    for tree in (effective_config(spec), spec.config):
        shown = yaml_text(as_written(tree))
        again = load_text(shown, "shown.yaml", environ={"HOME": "/root", "name": "n"}, cwd=Path("/elsewhere")).spec
        assert again.stages[0].taskset.sampling.stop == tuple(stop)
    assert again.config["monitor"]["monitor_args"] == {"${oc.env:HOME}": "key"}, "names are never resolved"


def test_what_a_variable_holds_is_not_resolved(load: Load, tmp_path: Path) -> None:
    environ = {"OUTER": "${oc.env:INNER}", "INNER": "secret"}
    assert load(overrides=["labels.a=${oc.env:OUTER}"], environ=environ).spec.labels == {"a": "${oc.env:INNER}"}
    file = tmp_path / "verl.yaml"
    file.write_text("trainer: {project_name: '${oc.env:OUTER}', experiment_name: '\\${x}'}\n")
    spec = load(overrides=[f"trainer.trainer_config_path={file}"], environ=environ).spec
    assert spec.config["trainer"]["trainer_config"]["trainer"] == {
        "project_name": "${oc.env:INNER}",
        "experiment_name": "${x}",
    }


def test_overrides_of_anothers_config_resolve_nothing_of_it(load: Load) -> None:
    theirs = {**load().config, "labels": {"a": "${oc.env:INNER}", "b": "${oc.env:NOT_SET}"}}
    (mine,) = portable_overrides(theirs, ["group=${labels.a}"], environ={"INNER": "private"}, cwd=Path("/w"))
    assert mine == 'group="${oc.env:INNER}"'


def test_a_text_of_backslashes_is_read_once() -> None:
    text = "\\" * 500_000
    assert parse_interpolation(text + "x") == (text + "x",)
    assert parse_interpolation(escape(text + "${")) == (text + "${",)


def test_many_of_them_are_not_all_told() -> None:
    many = {f"k{number}": "${x}" for number in range(limits.CONFIG_ERRORS + 9)}
    spec = check_config({**yaml.safe_load(TEXT), "labels": many})
    assert sum("stays text" in warning for warning in spec.warnings) == limits.CONFIG_ERRORS
