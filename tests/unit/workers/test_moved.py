"""Packages that were written for the release before: what they import from modules that have moved since."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic.daemon.third_party import install

from rftd.workers import api
from rftd.workers.moved import MOVED

BEFORE = Path(__file__).parents[2] / "golden" / "plugins_before"

OPEN = """
import json, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from rftd.streams.spec import PolicySpec
    from rftd.workers.control.policies.registry import POLICIES
    from rftd.workers.rollout.rewards.registry import REWARDS
    from rftd.workers.rollout.workflows.registry import WORKFLOWS
    opened = [WORKFLOWS.open("two_tries"), REWARDS.open("short_answer", {"per_character": 0.002})]
    opened.append(POLICIES.load("one_ahead")(PolicySpec(kind="one_ahead", args={"batches": 2})))
said = sorted(str(each.message) for each in caught if each.category is DeprecationWarning)
print(json.dumps([[type(each).__name__ for each in opened], [each for each in said if "rftd" in each]]))
"""


def test_a_package_of_the_release_before_opens_and_is_told_where_things_are(tmp_path: Path) -> None:
    points = {
        "two_tries": {
            "rftd.rewards": {"short_answer": "two_tries:ShortAnswer"},
            "rftd.workflows": {"two_tries": "two_tries:TwoTries"},
        },
        "one_ahead": {"rftd.policies": {"one_ahead": "one_ahead:OneAhead"}},
    }
    for module, groups in points.items():
        install(tmp_path, module, (BEFORE / f"{module}.py").read_text(encoding="utf-8"), groups)
    done = subprocess.run(
        [sys.executable, "-c", OPEN], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    opened, said = json.loads(done.stdout)
    assert opened == ["TwoTries", "ShortAnswer", "OneAhead"]
    assert [each.split(";")[0] for each in said] == [
        "rftd.workers.chat.message is now rftd.workers.tasksets.message",
        "rftd.workers.policies.paced is now rftd.workers.control.policies.paced",
        "rftd.workers.workflows.trajectory is now rftd.workers.rollout.workflows.trajectory",
    ]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("old", sorted(MOVED))
def test_a_module_that_moved_has_the_very_objects_of_the_one_of_today(old: str) -> None:
    before = importlib.import_module(f"rftd.workers.{old}")
    today = importlib.import_module(f"rftd.workers.{MOVED[old]}")
    public = {name: value for name, value in vars(today).items() if not name.startswith("_")}
    assert public == {name: value for name, value in vars(before).items() if name in public}
    assert before is not today
    assert today.__spec__ is not None
    assert today.__spec__.name == today.__name__


def test_what_moved_nowhere_is_still_not_there() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("rftd.workers.chat.nothing")


def test_the_documented_module_has_every_name_that_it_lists_and_imports_no_torch() -> None:
    assert [name for name in api.__all__ if not hasattr(api, name)] == []
    code = "import sys, rftd.workers.api; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "False\n", done.stderr
