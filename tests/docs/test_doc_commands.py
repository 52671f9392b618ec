"""Every command of README and docs is run, in order, against a real daemon with fake engines."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml
from synthetic.daemon.experiment_files import overlaid
from synthetic.docs.package import install_one_ahead, install_two_tries
from synthetic.docs.pages import PAGES, block_named, blocks_of
from synthetic.docs.world import World

GO_ON_FROM_THE_README = ("operations.md",)
WITHOUT_A_DAEMON = ("from-verl.md",)
"""Pages whose commands ask no daemon: tests of their own run them."""
COMMANDS = [
    page
    for page in PAGES
    if page.name not in WITHOUT_A_DAEMON and any("rftd " in block.text for block in blocks_of(page, "bash"))
]


@pytest.mark.e2e
@pytest.mark.parametrize("page", COMMANDS, ids=lambda page: page.name)
def test_the_commands_of_a_page_work(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RFTD_SERVER", "RFTD_DATA", "RFTD_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    world = World(tmp_path)
    with world.host:
        if page.name in GO_ON_FROM_THE_README:
            world.run("rftd submit mine.yaml --wait -s buffer.total_steps=6")
        for block in blocks_of(page, "bash"):
            for line in block.text.splitlines():
                if not line.startswith("make "):
                    world.run(line)


def on_the_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for third parties' packages, on the path of this process and of those that it starts."""
    site = folder / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH")))))
    monkeypatch.setenv("RFTD_PASS_ENV", "PYTHONPATH")
    return site


@pytest.mark.e2e
def test_a_third_party_reward_and_workflow_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of the extending page, as an entry point, through daemon, explorer and trainer."""
    install_two_tries(on_the_path(tmp_path, monkeypatch))
    world = World(tmp_path)
    taskset = "buffer.explorer_input.taskset"
    with world.host:
        world.run(
            "rftd submit mine.yaml --wait -s buffer.total_steps=4"
            f" -s {taskset}.default_workflow_type=two_tries -s {taskset}.default_reward_fn_type=short_answer"
            f" -s {taskset}.reward_fn_args.per_character=0.002"
        )
        rows = world.run("rftd experiences ls mine --json --order=-reward -n 200")
        assert '"reward"' in rows
        produced = world.run("rftd events mine --type experience.produced -o json -n 500")
    assert '"right"' in produced
    assert '"length"' in produced


@pytest.mark.e2e
def test_a_third_party_policy_and_priority_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's own part of an experiment file: two batches ahead, and what was hard is trained again first."""
    install_one_ahead(on_the_path(tmp_path, monkeypatch))
    mine = overlaid(yaml.safe_load(block_named("mine.yaml").text), yaml.safe_load(block_named("ahead.yaml").text))
    world = World(tmp_path)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(mine))
    cooldown = "buffer.trainer_input.experience_buffer.replay_buffer.reuse_cooldown_time"
    with world.host:
        world.run(f"rftd submit mine.yaml --wait -s buffer.total_steps=12 -s {cooldown}=0.2")
        (submitted,) = json.loads(world.run("rftd events mine --type experiment.submitted -o json"))["items"]
        rows = json.loads(world.run("rftd experiences ls mine --json -n 200"))["items"]
        assert world.run("rftd get mine").count("12 of 12") == 1
        world.run("rftd verify")
    policy = submitted["payload"]["spec"]["stages"][0]["policy"]
    assert (policy["kind"], policy["args"]) == ("one_ahead", {"batches": 2})
    assert (policy["priority"]["kind"], policy["priority"]["args"]) == ("hard_first", {"decay": 0.5})
    trained = [row for row in rows if row["uses"]]
    assert max(row["uses"] for row in trained) > 1, "what has rested was trained again"
