"""`rftd evals`: evaluations, their answers, two versions side by side, one row through all."""

from __future__ import annotations

import json

import pytest
from synthetic.daemon.command_line import Rftd, Served


def test_evaluations_are_a_table(rftd: Rftd) -> None:
    said = rftd("evals", "small")
    header, *rows = said.out.splitlines()
    assert header.split()[:4] == ["VERSION", "TASKSET", "ROWS", "SCORE"]
    figures = ["held_out", "4", "0.750", "0.250..1.000", "0.750", "0.300..0.950", "6.5"]
    assert [row.split() for row in rows] == [[version, *figures] for version in "345"]


def test_an_evaluation_has_its_figures(rftd: Rftd) -> None:
    lines = rftd("evals", "small", "--version", "4", "-n", "1").out.splitlines()
    for line in (
        "score         0.750  (0.250..1.000)",
        "accuracy      0.750  (0.300..0.950)",
        "tries         pass@1 0.750",
        "tokens        right 6.7, wrong 6.0",
        "category      sums: score 0.750, accuracy 0.750, 4 answers",
    ):
        assert line in lines


def test_the_worst_answers_come_first_with_their_text(rftd: Rftd) -> None:
    said = rftd("evals", "small", "--worst", "-n", "2")
    lines = said.out.splitlines()
    assert lines[0].split() == ["evaluation", "held_out,", "version", "5,", "4", "rows"]
    answers = [line for line in lines if line.startswith("row ")]
    assert [line.split()[1] for line in answers] == ["1", "0"]
    assert "wrong, accuracy 0, 6 tokens, stop" in answers[0]
    assert "prompt        1+1=" in lines
    assert "truth         2" in lines
    assert "next page: --offset 2" in said.err
    assert "\x1b" not in said.out, "what a model says moves no terminal"
    assert json.loads(rftd("evals", "small", "--best", "--json").out)["items"][0]["answer"]["row"] == 0


def test_two_versions_side_by_side(rftd: Rftd) -> None:
    said = rftd("evals", "small", "--changed-since", "4")
    assert "with version 4: 1 won, 1 lost, 2 same; +0.000, p 1: may be noise" in said.out
    page = json.loads(rftd("evals", "small", "--version", "5", "--changed-since", "4", "--json").out)
    shown = [(pair["answer"]["row"], pair["answer"]["reward"], pair["before"]["reward"]) for pair in page["items"]]
    assert shown == [(1, 0.0, 1.0), (0, 1.0, 0.0)], "what was lost comes first"
    assert (page["answers"], page["kept"], page["notes"]) == (4, 4, [])


def test_a_row_through_versions(rftd: Rftd) -> None:
    said = rftd("evals", "small", "--row", "1")
    verdicts = [line for line in said.out.splitlines() if line.startswith("version ")]
    assert [("right" in line, line.split()[1]) for line in verdicts] == [(True, "3"), (True, "4"), (False, "5")]
    versions = json.loads(rftd("evals", "small", "--row", "1", "--json").out)["items"]
    assert [each["answers"][0]["text"] for each in versions] == ["\x1b[31m2", "\x1b[31m2", "\x1b[31m99"]


def test_several_experiments_make_one_table_of_metrics(rftd: Rftd) -> None:
    header, *rows = rftd("evals", "small", "small").out.splitlines()
    assert header.split() == ["TASKSET", "METRIC", "EXPERIMENT", "VERSION", "VALUE", "STDERR"]
    assert [row.split() for row in rows][:3] == [
        ["held_out", "score", "small", "5", "0.750", "±", "0.2500"],
        ["held_out", "accuracy", "small", "5", "0.750", "±", "0.2500"],
        ["held_out", "pass@1", "small", "5", "0.750"],
    ]
    results = json.loads(rftd("evals", "small", "small", "--json").out)["results"]
    assert results["held_out"]["small"]["accuracy/stderr"] == 0.25
    assert rftd("evals", "small", "none").status == 3
    assert "name one for its answers" in rftd("evals", "small", "small", "--worst").err


def test_recorded_answers_are_judged_by_another_reward(rftd: Rftd) -> None:
    said = rftd("evals", "small", "--version", "5", "--reward", "exact_match_reward", "-n", "1")
    lines = said.out.splitlines()
    assert "reward        exact_match_reward, of 4 of 4 recorded answers" in lines
    judgement = json.loads(rftd("evals", "small", "--version", "5", "--reward", "exact_match_reward", "--json").out)
    rewards = {item["answer"]["row"]: item["reward"] for item in judgement["items"]}
    texts = {item["answer"]["row"]: (item["answer"]["text"], item["answer"]["truth"]) for item in judgement["items"]}
    assert rewards == {row: float(text.strip() == truth) for row, (text, truth) in texts.items()}
    assert judgement["score"] == sum(rewards.values()) / 4
    assert judgement["recorded"] == 0.75
    assert (judgement["won"], judgement["lost"], judgement["same"]) == (0, 0, 4)
    assert judgement["low"] <= judgement["score"] <= judgement["high"]
    assert "the rows are not here" in judgement["notes"][-1]


def test_parts_of_another_reward_have_their_means(rftd: Rftd) -> None:
    arguments = ["--reward", "math_reward", "--worst", "--json"]
    judgement = json.loads(rftd("evals", "small", "--version", "5", *arguments).out)
    rewards = [item["reward"] for item in judgement["items"]]
    assert rewards == sorted(rewards)
    assert judgement["parts"].keys() >= {"accuracy"}
    judgement = json.loads(rftd("evals", "small", "--version", "5", "--reward", "format_reward", "--json").out)
    assert judgement["lost"] >= 3, "no answer has the form that this reward wants"
    assert judgement["score"] < judgement["recorded"]
    first = judgement["items"][0]
    assert abs(first["reward"] - first["answer"]["reward"]) >= 1, "what is judged otherwise comes first"


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        (["--version", "9"], 3, ["version 9 was not evaluated on 'held_out'", "3, 4, 5"]),
        (["--changed-since", "2"], 3, ["version 2 was not evaluated"]),
        (["--taskset", "other", "--worst"], 3, ["nothing was evaluated yet"]),
        (["--row", "4"], 3, ["no answer to row 4 of 'held_out'"]),
        (["--row", "1", "--worst"], 2, ["--row shows every version"]),
        (["--version", "-1"], 2, ["--version"]),
        (["--reward", "math_rewart"], 2, ["math_reward"]),
        (["--reward", "llm_judge_reward"], 2, ["asks auxiliary models", "mode: bench"]),
        (["--reward", "math_reward", "--reward-args", "{"], 2, ["--reward-args", "no JSON"]),
        (["--reward", "math_reward", "--reward-args", "[1]"], 2, ["no mapping"]),
        (["--reward", "math_reward", "--reward-args", '{"no": 1}'], 2, ["'no'"]),
        (["--reward-args", "{}"], 2, ["name the reward"]),
        (["--reward", "math_reward", "--row", "1"], 2, ["judges one version"]),
    ],
)
def test_what_is_not_there_is_named(rftd: Rftd, options: list[str], status: int, words: list[str]) -> None:
    said = rftd("evals", "small", *options)
    assert said.status == status, said
    for word in words:
        assert word in said.err


def test_texts_that_are_gone_or_damaged_leave_the_scores(rftd: Rftd, served: Served) -> None:
    files = sorted((served.parts.job_dir / "artifacts").glob("*/*"))
    before = {path: path.read_bytes() for path in files}
    try:
        files[0].unlink()
        files[1].write_bytes(b"something else")
        files[2].write_bytes(b"")
        page = json.loads(rftd("evals", "small", "--worst", "--json").out)
        assert (page["answers"], page["kept"]) == (4, 0)
        assert "no texts from row 0 on" in page["notes"][0]
        assert page["items"][0]["answer"]["reward"] == 0.0
    finally:
        for path, data in before.items():
            path.write_bytes(data)
