"""Packages of third parties, written against `rftd.workers.api`: they open as they were written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from synthetic.daemon.third_party import install

from rftd.workers import api

GOLDEN = Path(__file__).parents[2] / "golden" / "plugins"
"""Six packages as their authors published them: from 0.1.0 on they change no more."""
POINTS = {
    "two_tries": {
        "rftd.rewards": {"short_answer": "two_tries:ShortAnswer"},
        "rftd.workflows": {"two_tries": "two_tries:TwoTries"},
    },
    "politeness": {"rftd.rewards": {"politeness": "politeness:Politeness"}},
    "one_ahead": {
        "rftd.policies": {"one_ahead": "one_ahead:OneAhead"},
        "rftd.priorities": {"hard_first": "one_ahead:hard_first"},
    },
    "hardest_first": {"rftd.selectors": {"hardest_first": "hardest_first:HardestFirst"}},
    "halved": {"rftd.advantages": {"halved": "halved:Halved"}},
    "unclipped": {"rftd.algorithms": {"unclipped": "unclipped:UNCLIPPED"}},
}
OPEN = """
import json, warnings
warnings.simplefilter("error", DeprecationWarning)
from rftd.streams.spec.spec import PolicySpec
from rftd.workers.learning.algorithms.advantages.registry import ADVANTAGES
from rftd.workers.learning.algorithms.registry import ALGORITHMS
from rftd.workers.control.policies.priorities import PRIORITIES
from rftd.workers.control.policies.registry import POLICIES
from rftd.workers.control.selectors.registry import SELECTORS
from rftd.workers.workflows.rewards.registry import REWARDS
from rftd.workers.workflows.registry import WORKFLOWS
opened = [
    WORKFLOWS.open("two_tries"),
    REWARDS.open("short_answer", {"per_character": 0.002}),
    REWARDS.open("politeness"),
    POLICIES.load("one_ahead")(PolicySpec(kind="one_ahead", args={"batches": 2})),
    PRIORITIES.open("hard_first", {"decay": 0.5}),
    SELECTORS.open("hardest_first"),
    ADVANTAGES.open("halved"),
    ALGORITHMS.load("unclipped"),
]
print(json.dumps([type(plugin).__name__ for plugin in opened]))
"""


def test_packages_written_against_the_documented_module_open(tmp_path: Path) -> None:
    assert sorted(path.stem for path in GOLDEN.glob("*.py")) == sorted(POINTS)
    for module, groups in POINTS.items():
        install(tmp_path, module, (GOLDEN / f"{module}.py").read_text(encoding="utf-8"), groups)
    done = subprocess.run(
        [sys.executable, "-c", OPEN], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [
        "TwoTries",
        "ShortAnswer",
        "Politeness",
        "OneAhead",
        "function",
        "HardestFirst",
        "Halved",
        "AlgorithmDefinition",
    ]


def test_the_documented_module_has_every_name_that_it_lists_and_imports_no_torch() -> None:
    assert [name for name in api.__all__ if not hasattr(api, name)] == []
    code = "import sys, rftd.workers.api; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "False\n", done.stderr
