"""README and docs keep their word: links lead somewhere, files load, code runs, names exist."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import yaml
from synthetic.daemon.experiment_files import overlaid
from synthetic.docs.package import (
    install_careful,
    install_next_token,
    install_one_ahead,
    install_packed_weights,
    install_two_tries,
)
from synthetic.docs.pages import PAGES, ROOT, Block, anchors_of, block_named, blocks_of, code_of, links_of, prose_of
from synthetic.log.checker_rules import OF_AN_EXPERIMENT, OF_THE_LOG
from synthetic.worlds.policy_world import PolicyWorld, Sizes

from rftd.daemon.cli.cli import VERBS, rftd
from rftd.daemon.cli.daemon_file import take_daemon_file
from rftd.daemon.cli.verbs.serve import command as serve
from rftd.daemon.config.loading import load_text
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.policy import POLICY_KINDS
from rftd.daemon.config.schema.section import mark_of
from rftd.streams.spec.spec import PolicySpec, PrioritySpec, TasksetSpec
from rftd.workers.control.policies.registry import make_policy
from rftd.workers.datasets.task import Task
from rftd.workers.engines.contract.rollout.checks import CHECKS
from rftd.workers.generation.response import Response
from rftd.workers.workflows.rewards.reward import RolloutView
from rftd.workers.workflows.rewards.scorer import open_scorer
from rftd.workers.workflows.source import SourceName, check_source, imports_trinity
from rftd.workers.workflows.workflow_source import open_workflow_source

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def blocks(*languages: str) -> list[Block]:
    return [block for page in PAGES for block in blocks_of(page, *languages)]


@pytest.fixture
def third_parties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third parties of the pages, installed."""
    install_two_tries(tmp_path)
    install_one_ahead(tmp_path)
    install_packed_weights(tmp_path)
    install_careful(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in links_of(page):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors_of(file), target


@every_page
def test_named_files_exist(page: Path) -> None:
    folders = ("daemon/", "workers/", "storage/", "streams/", "ops/", "examples/", "docs/", "tests/")
    for code in code_of(page):
        if code.startswith(folders):
            assert list(ROOT.glob(code.split()[0])), code


DAEMON_FILES = [block for block in blocks("yaml") if block.text.startswith("# rftd.yaml")]


@pytest.mark.parametrize("block", DAEMON_FILES, ids=lambda block: block.place)
def test_daemon_files_load(block: Block, tmp_path: Path) -> None:
    (tmp_path / "rftd.yaml").write_text(block.text)
    context = click.Context(serve)
    take_daemon_file(context, serve.params[0], str(tmp_path / "rftd.yaml"))
    assert context.default_map
    assert set(context.default_map) == set(yaml.safe_load(block.text))


@pytest.mark.parametrize(
    "block", [each for each in blocks("yaml") if each not in DAEMON_FILES], ids=lambda block: block.place
)
@pytest.mark.usefixtures("third_parties")
def test_experiment_files_load(block: Block, tmp_path: Path) -> None:
    """A part of a file is laid over the README's whole one; a file of its own has a project and a model."""
    content = yaml.safe_load(block.text)
    if not {"project", "model"} <= content.keys():
        content = overlaid(yaml.safe_load(block_named("mine.yaml").text), content)
    submission = load_text(yaml.safe_dump(content, sort_keys=False), block.place, environ={}, cwd=tmp_path)
    assert not [warning for warning in submission.warnings if "no effect" in warning]


def test_the_file_of_the_readme_is_among_the_examples() -> None:
    assert (ROOT / "examples" / "mine.yaml").read_text() == block_named("mine.yaml").text


@pytest.mark.parametrize("name", ["demo", "mine", "gsm8k", "sft", "dpo", "kto", "cpt"])
def test_the_examples_load(name: str, tmp_path: Path) -> None:
    overrides = () if name != "gsm8k" else ("project=p", "name=n")
    text = (ROOT / "examples" / f"{name}.yaml").read_text()
    assert load_text(text, name, overrides=overrides, environ={}, cwd=tmp_path).spec.stages


# Blocks of python.md need a daemon, and run in test_python_page.
@pytest.mark.parametrize(
    "block", [block for block in blocks("python") if block.page.name != "python.md"], ids=lambda block: block.place
)
def test_code_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if imports_trinity(block.text):
        check_source(SourceName("their_flow.py", "retry_workflow"), block.text, imports=True)
        taskset = TasksetSpec(name="t", path="t.jsonl", workflow="their_flow.py:retry_workflow")
        open_workflow_source(SourceName("their_flow.py", "retry_workflow"), block.text, {}, taskset)
        return
    path = tmp_path / "block_of_a_page.py"
    path.write_text(block.text)
    spec = importlib.util.spec_from_file_location("block_of_a_page", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "block_of_a_page", module)
    spec.loader.exec_module(module)
    if "class ShortAnswer" in block.text:
        parts = module.ShortAnswer().score("so it is 12", "12", None)
        assert parts["right"] == 1.0
        assert parts["length"] < 0
    if "def short_answer" in block.text:
        sources = {"my_rewards.py": block.text}
        task = Task(taskset="t", row=0, epoch=0, prompt="", messages=(), truth="12", workflow="simple_workflow")
        scored = asyncio.run(open_scorer("my_rewards.py:short_answer", sources=sources).score("so it is 12", task))
        assert scored.parts["right"] == 1.0
        assert scored.parts["length"] < 0
    if "class BriefAnswers" in block.text:
        long, brief = (
            SimpleNamespace(experience=number, rollout=number, reward=1.0, response_tokens=tokens)
            for number, tokens in enumerate((2000, 500))
        )
        monkeypatch.setattr(module.msgspec.structs, "replace", lambda _, reward: reward)
        assert module.BriefAnswers().process([long, brief]) == ([0.5], {"long": 1.0})
    if "class SoftOverlong" in block.text:
        for length, expected in ((100, 0.0), (16384, 0.0), (18432, -0.5), (20480, -1.0), (30000, -1.0)):
            turn = Response(text="12", prompt=(1,), tokens=(1,) * length, logprobs=(), spans=(), finish="stop")
            parts = module.SoftOverlong().score("so it is 12", "12", None, rollout=RolloutView((turn,)))
            assert parts == {"right": 1.0, "overlong": expected}


@every_page
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    lines = [line for block in blocks_of(page, "bash") for line in block.text.splitlines()]
    for line in [*lines, *code_of(page)]:
        if line.startswith("make "):
            words = [word for word in line.split()[1:] if "=" not in word]
            assert set(words) <= targets, line


@every_page
def test_verbs_and_options_exist(page: Path) -> None:
    """Verbs and options that the prose names exist; commands in blocks are run."""
    for code in code_of(page):
        words = code.split()
        if words[0] != "rftd" or len(words) == 1 or words[1].startswith("-"):
            continue
        assert words[1] in VERBS, code
        command: click.Command | None = rftd.get_command(click.Context(rftd), words[1])
        for word in words[2:]:
            if isinstance(command, click.Group) and word in command.commands:
                command = command.commands[word]
        assert command is not None
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word.partition("=")[0] for word in words[2:] if word.startswith("-")} <= known, code


def test_every_rule_of_verify_is_explained() -> None:
    page = ROOT / "docs" / "concepts.md"
    named = re.findall(r"^\| `([a-z-]+)` \|", prose_of(page).partition("## What `rftd verify` checks")[2], re.MULTILINE)
    assert named == [*OF_THE_LOG, *OF_AN_EXPERIMENT]


def generator(name: str) -> Any:
    path = ROOT / "tests" / "golden" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["errors", "algorithms", "configuration"])
def test_a_generated_page_is_up_to_date(name: str) -> None:
    page = generator(f"make_{name}_page")
    assert (ROOT / "docs" / f"{name}.md").read_text() == page.text(), f"run tests/golden/make_{name}_page.py"


def test_the_drawing_of_the_rooms_is_that_of_the_tree() -> None:
    drawing = generator("make_rooms_drawing")
    assert (ROOT / "docs" / "architecture.md").read_text() == drawing.text(), "run tests/golden/make_rooms_drawing.py"


@pytest.mark.parametrize("page", ["concepts.md", "experiment_file.md"])
def test_a_table_of_policies_is_up_to_date(page: str) -> None:
    tables = generator("make_policy_tables")
    assert (ROOT / "docs" / page).read_text() == tables.text(page), "run tests/golden/make_policy_tables.py"


@pytest.mark.usefixtures("third_parties")
def test_the_policy_and_the_priority_of_the_extending_page_play_a_stage() -> None:
    """Three batches run ahead, each experience is trained again and again, and the stage comes to its end."""
    spec = PolicySpec(
        kind="one_ahead",
        args={"batches": 2},
        bounded=False,
        priority=PrioritySpec(kind="hard_first", args={"decay": 0.5}),
        max_uses=0,
        cooldown_s=1.5,
    )
    sizes = Sizes(steps=20, groups=2, repeat_times=2, interval=2, slots=9, first_version=0, tail=2.0, fail_p=0.1)
    world = PolicyWorld(make_policy(spec), spec, sizes, seed=1)
    world.run()
    assert max(world.uses.values()) > 1
    assert len(world.planned) == 20


@pytest.mark.slow
def test_the_contract_of_the_extending_page_runs_as_it_stands(tmp_path: Path) -> None:
    """The example runs in a folder of its own with none of our fixtures, as a third party has it."""
    install_next_token(tmp_path)
    (tmp_path / "test_next_token.py").write_text(block_named("test_next_token.py").text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(CHECKS)} passed" in done.stdout


def acting(section: Any) -> set[str]:
    """Names of the fields of a section that rftd acts on; of the policy those of every kind."""
    if section is Experiment.model_fields["policy"].annotation:
        return {name for kind in POLICY_KINDS.values() for name in acting(kind)}
    found = set()
    for name, field in section.model_fields.items():
        if mark_of(field).effect == "acts":
            found.add(name)
    return found


def test_fields_of_the_tables_are_fields_that_act() -> None:
    page = (ROOT / "docs" / "experiment_file.md").read_text()
    tables = page.partition("## Fields that act")[2].partition("## Stages")[0]
    inert = {"continue_from_checkpoint"}  # the daemon reads it, not the schema's client
    for heading, body in re.findall(r"^### (.+?)\n(.*?)(?=^### |\Z)", tables, re.MULTILINE | re.DOTALL):
        sections = re.findall(r"`(\w+)`", heading)
        for row in re.findall(r"^\| (`.+?) \|", body, re.MULTILINE):
            for path in re.findall(r"`([\w.]+)`", row):
                kind: Any = Experiment
                parts = path.split(".") if len(sections) != 1 else [sections[0], *path.split(".")]
                for part in parts:
                    assert part in acting(kind) | inert, path
                    kind = kind.model_fields[part].annotation if hasattr(kind, "model_fields") else None


def test_no_acting_field_is_left_out() -> None:
    page = (ROOT / "docs" / "experiment_file.md").read_text()
    for section in ("algorithm", "explorer", "trainer", "synchronizer", "buffer", "model", "cluster", "policy"):
        kind: Any = Experiment.model_fields[section].annotation
        left_out = [name for name in acting(kind) if not re.search(rf"[`.]{name}[`.]", page)]
        assert not left_out, section
