"""`rftd try`: one rollout with all that happened, and recorded rollouts by another reward; nothing is recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from synthetic.daemon.command_line import Rftd
from synthetic.daemon.fork_desk import EXPERIMENT
from synthetic.daemon.served_daemon import served_daemon
from synthetic.log.synthetic_run import SFT_STEPS
from synthetic.log.text_run import SyntheticRollout, text_run, tokenizer_json

SHORT = """
def short(response, truth, rollout, weight=0.25):
    return {"right": float(response.strip() == truth), "length": -weight * rollout.response_tokens}
"""
FLOW = """
from rftd.workers.api import RewardResult, Trajectory, tool_call


async def asks_twice(task, model, reward):
    trajectory = Trajectory()
    trajectory.add(await model.complete(task.prompt))
    with tool_call("calculator"):
        pass
    trajectory.add(await model.generate([*trajectory.tokens, *model.tokenizer.encode(" again: 1+2=")]))
    return trajectory.result(RewardResult(value=0.5, parts={"tries": 0.5}, extracted="3"))


async def fails(task, model, reward):
    raise ValueError(task.prompt)
"""


@pytest.fixture
def folder(rftd: Rftd) -> Path:
    """An experiment with its rows, a reward and workflows in files, in the working folder."""
    here = Path.cwd()
    rows = [json.dumps({"question": f"{a}+{a}=", "answer": str(2 * a)}) for a in range(5)]
    for name in ("train", "eval"):
        (here / f"{name}.jsonl").write_text("\n".join(rows))
    (here / "exp.yaml").write_text(EXPERIMENT)
    (here / "mine.py").write_text(SHORT)
    (here / "flow.py").write_text(FLOW)
    return here


def test_a_task_is_tried_and_everything_shown(rftd: Rftd, folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    said = rftd("try", "exp.yaml", "--task", "3", "--reward", "./mine.py:short", "--json")
    assert (said.status, said.err) == (0, "")
    tried = json.loads(said.out)
    assert (tried["taskset"], tried["row"], tried["prompt"], tried["truth"]) == ("sums", 3, "3+3=", "6")
    [call] = tried["calls"]
    assert bytes(call["prompt_ids"]).decode() == call["prompt"] == "3+3="
    assert tried["drawn_tokens"] == tried["trained_tokens"] == len(call["answer_ids"])
    right = float(call["answer"].strip().startswith("6"))
    assert tried["rewards"] == {"right": right, "length": -0.25 * len(call["answer_ids"])}
    assert tried["reward"] == sum(tried["rewards"].values())
    assert [part["name"] for part in tried["parts"]] == ["reward mine.py:short"]
    assert tried["error"] == ""
    assert sorted(folder.rglob("*")) == before, "nothing is left behind"


def test_another_seed_draws_other_answers_and_the_same_seed_the_same(rftd: Rftd, folder: Path) -> None:
    def answers(seed: int) -> list[int]:
        tried = json.loads(rftd("try", "exp.yaml", "--seed", str(seed), "--json").out)
        ids: list[int] = tried["calls"][0]["answer_ids"]
        return ids

    assert answers(1) == answers(1)
    assert len({tuple(answers(seed)) for seed in range(6)}) > 1


def test_calls_and_tools_are_shown_for_people(rftd: Rftd, folder: Path) -> None:
    flow = "buffer.explorer_input.taskset.default_workflow_type=./flow.py:asks_twice"
    said = rftd("try", "exp.yaml", "-s", flow)
    assert said.status == 0, said.err
    lines = said.out.splitlines()
    assert lines[:2] == ["task          sums, row 0", "workflow      flow.py:asks_twice; reward exact_match_reward"]
    for line in ("prompt        0+0=", "seen          0+0=", "ids           48 43 48 61", "read          3"):
        assert line in lines
    assert [line.split()[1] for line in lines if line.startswith("call ")] == ["1", "2"]
    assert "again: 1+2=" in said.out
    assert any(line.startswith("ran           execute_tool calculator, ") for line in lines)
    assert "reward        0.500  (tries 0.500)" in lines


def test_a_failed_rollout_says_why_and_exits_with_1(rftd: Rftd, folder: Path) -> None:
    flow = "buffer.explorer_input.taskset.default_workflow_type=./flow.py:fails"
    said = rftd("try", "exp.yaml", "-s", flow)
    assert said.status == 1
    assert "error         workflow 'flow.py:fails' raised ValueError: 0+0=" in said.out
    assert json.loads(rftd("try", "exp.yaml", "-s", flow, "--json").out)["reward"] is None


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--task", "99"), "99"),
        (("--taskset", "other"), "no taskset 'other'"),
        (("--reward", "no_reward"), "unknown reward 'no_reward'"),
        (("--reward", "./mine.py:shorter"), "defines no 'shorter'"),
        (("--reward", "./nobody.py:short"), "cannot be read"),
        (("--reward-args", "{}"), "--reward-args without --reward"),
        (("--reward", "./mine.py:short", "--reward-args", "[1]"), "is no mapping"),
        (("--reward", "./mine.py:short", "--reward-args", '{"height": 1}'), "takes no argument 'height'"),
        (("--step", "1"), "need a reward"),
    ],
)
def test_a_wrong_command_line_is_refused(rftd: Rftd, folder: Path, arguments: tuple[str, ...], problem: str) -> None:
    said = rftd("try", "exp.yaml", *arguments)
    assert said.status not in (0, 70)
    assert problem in said.err


@pytest.fixture
def recorded(rftd: Rftd, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rftd]:
    """A daemon with four rollouts of one row: right, wrong, in several parts, and without a text; two were trained."""
    folder = tmp_path_factory.mktemp("texts")
    run = text_run(folder, tokenizer=tokenizer_json())
    pieces = (("7", True), ("<tool_response>3</tool_response>", False), ("3", True))
    run.group(
        [
            SyntheticRollout(parts=(("3", True),), reward=0.5),
            SyntheticRollout(parts=(("44", True),), reward=1.0),
            SyntheticRollout(parts=pieces),
            SyntheticRollout(dropped=True),
        ]
    )
    run.plan(stage=1, take=2)
    run.complete(stage=1, items=2)
    with served_daemon(folder, run=run) as served:
        monkeypatch.setenv("RFTD_SERVER", served.url)
        yield rftd


def test_recorded_rollouts_are_judged_by_a_reward_of_a_file(recorded: Rftd) -> None:
    Path("mine.py").write_text(SHORT)
    rows = json.loads(recorded("experiences", "ls", "texts", "--order", "oldest", "--json").out)["items"]
    seen = []
    for row in rows:
        arguments = ("--experience", row["id"], "--reward", "./mine.py:short", "--reward-args", '{"weight": 0.5}')
        said = recorded("try", "texts", *arguments, "--json")
        assert said.status == 0, said.err
        judged = json.loads(said.out)
        for item in judged["items"]:
            assert (item["experience"], item["row"], item["truth"]) == (row["id"], 0, "3")
            seen.append((item["response"], item["recorded"], item["parts"]))
        assert bool(judged["notes"]) == (not judged["items"])
    assert seen == [
        ("3", 0.5, {"right": 1.0, "length": -1.0}),
        ("44", 1.0, {"right": 0.0, "length": -1.5}),
        ("3", 1.0, {"right": 1.0, "length": -1.0}),
    ]


def test_the_rollouts_of_a_step_are_judged_together(recorded: Rftd) -> None:
    Path("mine.py").write_text(SHORT)
    arguments = ("--step", str(SFT_STEPS + 1), "--reward", "./mine.py:short", "--reward-args", '{"weight": 0.5}')
    said = recorded("try", "texts", *arguments, "--json")
    assert said.status == 0, said.err
    judged = json.loads(said.out)
    assert {(item["response"], item["recorded"], item["reward"]) for item in judged["items"]} == {
        ("3", 0.5, 0.0),
        ("44", 1.0, -1.5),
    }
    assert (judged["recorded"], judged["judged"], judged["notes"]) == (0.75, -0.75, [])
    limited = json.loads(recorded("try", "texts", *arguments, "-n", "1", "--json").out)
    assert len(limited["items"]) == 1
    lines = recorded("try", "texts", *arguments).out.splitlines()
    assert "mean          -0.750; recorded 0.750" in lines


def test_a_recorded_rollout_is_shown_with_both_rewards(recorded: Rftd) -> None:
    rows = json.loads(recorded("experiences", "ls", "texts", "--order", "oldest", "--json").out)["items"]
    lines = recorded("try", "texts", "--experience", rows[1]["id"], "--reward", "exact_match_reward").out.splitlines()
    assert lines[0] == "reward        exact_match_reward"
    for line in ("answer        44", "truth         3", "recorded      1.000  (accuracy 1.000)"):
        assert line in lines
    assert "now           0.000  (accuracy 0.000)" in lines
    nothing = recorded("try", "texts", "--step", "999", "--reward", "exact_match_reward")
    assert (nothing.status, "no experience was trained in step 999" in nothing.err) == (3, True)
