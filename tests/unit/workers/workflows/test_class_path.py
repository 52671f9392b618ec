"""Workflow classes by class path: what is a path, what is found without running it, and what runs."""

from __future__ import annotations

import sys
from pathlib import Path
from uuid import UUID

import pytest
from synthetic.models.scripted_engine import SPEC, ScriptedEngine
from synthetic.worlds.trinity_classes import ASYNC

from rftd.daemon.trust.allowances import Allowances, is_class_pattern
from rftd.ops.errors import ConfigError
from rftd.streams.events.experiment import Grant
from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import TasksetSpec
from rftd.workers.datasets.byte_tokenizer import ByteTokenizer
from rftd.workers.datasets.task import make_task
from rftd.workers.workflows.class_path import ClassPath, check_class_path, class_path
from rftd.workers.workflows.runner import WorkflowRunner, check_names

NATIVE = """
from rftd.workers.workflows.simple import SimpleWorkflow


class Plain(SimpleWorkflow):
    default_reward = "exact_match_reward"
"""


@pytest.fixture(autouse=True)
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that notes its import, with a class of Trinity-RFT's and one of rftd's."""
    package = tmp_path / "ourlab"
    package.mkdir()
    (package / "__init__.py").write_text("IMPORTED = True\n")
    (package / "theirs.py").write_text("from .words import NOTHING  # noqa\n" + ASYNC)
    (package / "words.py").write_text("NOTHING = ''\n")
    (package / "native.py").write_text(NATIVE)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "ourlab"]:
        monkeypatch.delitem(sys.modules, name)


def test_a_class_path_has_dots_and_is_no_file() -> None:
    assert class_path("ourlab.flows.Flow") == ClassPath("ourlab.flows", "Flow")
    for text in ("math_workflow", "flows.py", "./flows.py:Flow", "a..b", ".a", "a.", "a.b:c", "a.1", "", None):
        assert class_path(text) is None, text


def test_a_class_is_looked_up_without_running_its_package() -> None:
    for name in ("ourlab.theirs.AsyncWorkflow", "ourlab.theirs.async_workflow", "ourlab.native.Plain"):
        path = class_path(name)
        assert path is not None
        check_class_path(path)
        check_names(TasksetSpec(name="t", path="t", workflow=name))
    assert "ourlab" not in sys.modules
    for path, problem in (
        (ClassPath("ourlab.theirs", "AsyncWorkflows"), "defines no 'AsyncWorkflows'"),
        (ClassPath("ourlab.nothing", "Flow"), "no module 'ourlab.nothing'"),
        (ClassPath("nobodys.flows", "Flow"), "no module 'nobodys.flows'"),
    ):
        with pytest.raises(ConfigError, match=problem):
            check_class_path(path)


@pytest.mark.anyio
@pytest.mark.parametrize(("name", "reward"), [("theirs.AsyncWorkflow", 5.0), ("native.Plain", 1.0)])
async def test_a_class_of_a_package_runs(name: str, reward: float) -> None:
    spec = TasksetSpec(
        name="t", path="t", format=Format(prompt_key="question", response_key="answer"), workflow=f"ourlab.{name}"
    )
    runner = WorkflowRunner(
        spec, model=SPEC, engine=ScriptedEngine(replies=("seven",)), tokenizer=ByteTokenizer(), sources={}
    )
    task = make_task({"question": "2+5=", "answer": "seven"}, spec=spec, row=0)
    assert (await runner.run(task, UUID(int=1))).reward == reward
    assert not [module for module in sys.modules if module.partition(".")[0] == "trinity"]


def test_the_configuration_allows_classes_by_pattern() -> None:
    allowances = Allowances(allow_code=("/srv/models", "ourlab.flows.*"))
    assert allowances.class_of_package("ourlab.flows.Flow") == Grant("allow_code", "ourlab.flows.Flow")
    assert allowances.class_of_package("ourlab.Flow") is None
    assert Allowances(allow_code=("/srv/models",)).class_of_package("a.b") is None
    granted = Grant("allow_code", "ourlab.flows.Flow")
    assert list(allowances.withdrawn([granted])) == []
    assert list(Allowances(allow_code=("/srv/models",)).withdrawn([granted])) == [granted]
    assert [line for line in ("a.b", "a.*", "/a.b", "models", "./a.b") if is_class_pattern(line)] == ["a.b", "a.*"]
