"""Every command of README and docs is run, in order, against a real daemon with fake engines."""

from __future__ import annotations

from pathlib import Path

import pytest
from doc_package import install_two_tries
from doc_pages import PAGES, blocks_of
from doc_world import World

COMMANDS = [page for page in PAGES if any("rftd " in block.text for block in blocks_of(page, "bash"))]

GO_ON_FROM_THE_README = ("operations.md",)


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


@pytest.mark.e2e
def test_a_third_party_reward_and_workflow_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of the extending page, as an entry point, through daemon, explorer and trainer."""
    third_party = tmp_path / "site"
    third_party.mkdir()
    install_two_tries(third_party)
    monkeypatch.syspath_prepend(str(third_party))
    monkeypatch.setenv("PYTHONPATH", str(third_party))
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
    assert '"right"' in produced and '"length"' in produced
