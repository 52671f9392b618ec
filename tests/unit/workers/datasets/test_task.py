"""Tasks: how rows of different shapes become prompts and truths."""

from __future__ import annotations

from typing import Any

import pytest

from rftd.ops.errors import DataError
from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import TasksetSpec
from rftd.workers.datasets.message import Message
from rftd.workers.datasets.task import Task, make_task

CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]


def task(record: dict[str, Any], *, reward: str | None = None, **form: Any) -> Task:
    spec = TasksetSpec(name="t", path="rows.jsonl", format=Format(**form), reward=reward)
    return make_task(record, spec=spec, row=7, epoch=2)


def test_prompt_and_response_columns() -> None:
    record = {"q": "1+1?", "a": 2, "level": 3}
    made = task(record, prompt_key="q", response_key="a", prompt_type="raw", system_prompt="s", reply_prefix="r")
    assert (made.prompt, made.truth, made.bare) == ("1+1?", "2", True)
    assert made.messages == (Message("user", "1+1?"),)
    assert (made.system_prompt, made.reply_prefix, made.raw) == ("s", "r", record)
    assert (made.where, made.epoch) == ("taskset 't' row 7", 2)


def test_messages_end_with_the_truth_or_with_a_question() -> None:
    made = task({"message": CHAT})
    assert (made.messages, made.truth) == ((Message("user", "hi"),), "ho")
    assert task({"message": CHAT, "response": "he"}).truth == "he"
    assert task({"message": CHAT[:1]}, response_key="").truth == ""
    assert task({"prompt": CHAT[:1], "response": "he"}).messages == (Message("user", "hi"),)
    assert task({"message": '[{"role": "user", "content": "hi"}]', "response": "he"}).prompt == "hi"


def test_a_row_may_bring_its_own_system_prompt_workflow_and_reward() -> None:
    record = {"prompt": "p", "response": "r", "sys": "own", "wf": "simple_workflow", "rw": "accuracy_reward"}
    keys = {"system_prompt_key": "sys", "workflow_key": "wf", "reward_fn_key": "rw", "system_prompt": "s"}
    made = task(record, reward="math_reward", **keys)
    assert (made.system_prompt, made.workflow, made.reward) == ("own", "simple_workflow", "accuracy_reward")
    del record["sys"], record["wf"], record["rw"]
    made = task(record, reward="math_reward", **keys)
    assert (made.system_prompt, made.workflow, made.reward) == ("s", "math_workflow", "math_reward")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            {"question": "q", "answer": "a"},
            r"(?s)no value under 'prompt'; its keys are \['answer', 'question'\].*row 7",
        ),
        ({"prompt": "q"}, "no value under 'response'"),
        ({"prompt": "q", "response": None}, "null under 'response'"),
        ({"message": "hello", "response": "r"}, "are not a list"),
        ({"message": [], "response": "r"}, "are empty"),
        ({"message": [{"role": "user"}], "response": "r"}, "`content`"),
        ({"message": [{"role": "user", "content": None}], "response": "r"}, "`str`, got `null`"),
        ({"message": [{"role": "user", "content": ["hi"]}], "response": "r"}, "`str`, got `array`"),
        ({"message": ["hi"], "response": "r"}, "got `str`"),
        ({"message": 7, "response": "r"}, "are not a list"),
        ({"message": "[" * 5000 + "]" * 5000, "response": "r"}, "are not a list"),
        ({"message": '[{"role": "user", "content": "hi", "x": ' + "[" * 5000 + "]" * 5000 + "}]"}, "are not a list"),
        ({"prompt": [], "response": "r"}, "under 'prompt' that are empty"),
    ],
)
def test_a_missing_key_names_the_row_and_the_keys_it_has(record: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        task(record)


def test_keys_lead_into_columns() -> None:
    record = {
        "prompt": CHAT[:1],
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {"answers": ["a", "b"], "workflow": "simple_workflow"},
    }
    made = task(record, response_key="reward_model.ground_truth", workflow_key="extra_info.workflow")
    assert (made.truth, made.workflow) == ("2", "simple_workflow")
    assert task(record, prompt_key="prompt[0].content", response_key="extra_info.answers[-1]").prompt == "hi"
    assert task(record, response_key="extra_info.answers[-1]").truth == "b"
    named = {**record, "reward_model.ground_truth": "a column of this name"}
    assert task(named, response_key="reward_model.ground_truth").truth == "a column of this name"


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("ground_truth", "reward_model.ground_truth"),
        ("reward_modell.ground_truth", "reward_model.ground_truth"),
        ("reward_model.grund_truth", "reward_model.ground_truth"),
        ("prompts[0].content", r"prompt\[0\].content"),
    ],
)
def test_a_key_that_leads_nowhere_is_answered_with_the_nearest(key: str, nearest: str) -> None:
    record = {"prompt": CHAT[:1], "reward_model": {"style": "rule", "ground_truth": "2"}}
    message = rf"(?s)no value under .*'prompt\[0\].content'.*'reward_model.ground_truth'.*did you mean '{nearest}'"
    with pytest.raises(DataError, match=message):
        task(record, response_key=key)


@pytest.mark.parametrize(
    "key", ["reward_model[0]", "reward_model.", "a..b", "prompt[1]", "prompt[x]", "]", "prompt[0].content.x"]
)
def test_a_key_that_is_no_path_of_the_row_is_refused(key: str) -> None:
    record = {"prompt": CHAT[:1], "reward_model": {"ground_truth": "2"}}
    with pytest.raises(DataError, match="no value under"):
        task(record, response_key=key)


def test_a_content_of_parts_is_its_text() -> None:
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "1+1?"}]
    made = task({"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": parts}], "response": "2"})
    assert made.messages == (Message("system", "s"), Message("user", "What is 1+1?"))


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"type": "image", "image": "cat.png"}, "image"),
        ({"type": "image_url", "image_url": {"url": "https://example.org"}}, "image_url"),
        ({"type": "video", "video": "v.mp4"}, "video"),
        ({"type": "text"}, "text"),
        ({"text": "no type"}, "None"),
    ],
)
def test_a_part_that_is_no_text_is_refused_by_name(part: object, kind: str) -> None:
    with pytest.raises(
        DataError, match=f"(?s)messages under 'prompt' that hold a part of type '?{kind}.*only text.*row 7"
    ):
        task({"prompt": [{"role": "user", "content": [{"type": "text", "text": "Look:"}, part]}], "response": "r"})
