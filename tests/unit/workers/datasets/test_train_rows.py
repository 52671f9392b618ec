"""Conversations, preferences and texts as tokens: `[...]` is what is learned, `|` the end of the prompt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from rftd.ops.errors import DataError
from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import TasksetSpec
from rftd.workers.datasets.byte_tokenizer import EOS, ByteTokenizer
from rftd.workers.datasets.hf_tokenizer import HfTokenizer, open_tokenizer
from rftd.workers.datasets.message import Message
from rftd.workers.datasets.taskset import Taskset
from rftd.workers.datasets.tokenizer import Tokenizer
from rftd.workers.datasets.train_row import TrainRow
from rftd.workers.datasets.train_rows import make_train_rows
from rftd.workers.models.tiny_model import CHAT_TEMPLATE, make_tokenizer

MARKED = (
    "{{ bos_token }}{% if tools %}TOOLS{% for tool in tools %} {{ tool.name }}{% endfor %}{{ '\\n' }}{% endif %}"
    "{% for message in messages %}<|{{ message.role }}|>{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content }}{% for call in message.tool_calls %}call {{ call.name }}{% endfor %}"
    "{{ eos_token }}{% endgeneration %}{% else %}{{ message.content }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if enable_thinking %}<think>{% endif %}{% endif %}"
)
"""A template with marks, tools, a variable, and a line break after each turn that nobody says."""

TURNS = [
    {"role": "user", "content": "1+2"},
    {"role": "assistant", "content": "3"},
    {"role": "user", "content": "+4"},
    {"role": "assistant", "content": "7"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model")
    make_tokenizer().save_pretrained(path)
    return str(path)


def demo(folder: str, template: str = CHAT_TEMPLATE, **arguments: Any) -> HfTokenizer:
    return open_tokenizer(folder, chat_template=template, template_args=arguments)


def rows(
    record: dict[str, Any], tokenizer: Tokenizer, *, schema: str = "sft", length: int = 200, **form: Any
) -> tuple[TrainRow, ...]:
    spec = TasksetSpec(name="t", path="rows.jsonl", format=Format(**form), schema=schema)
    return make_train_rows(record, spec=spec, row=3, tokenizer=tokenizer, max_model_len=length)


def shown(row: TrainRow, inner: Any) -> str:
    """The row as text with its special tokens, what is learned in brackets."""
    text, learning = "", False
    for place, token in enumerate(row.tokens):
        learned = place >= row.prompt_tokens and bool(row.loss_mask[place - row.prompt_tokens])
        text += ("]" if learning and not learned else "") + ("|" if place == row.prompt_tokens else "")
        text += ("[" if learned and not learning else "") + inner.decode([int(token)])
        learning = learned
    return text + ("]" if learning else "")


def of_demo(folder: str, template: str, messages: Sequence[dict[str, Any]], **form: Any) -> str:
    record = {"message": messages, **form.pop("record", {})}
    (row,) = rows(record, demo(folder, template, **form.pop("arguments", {})), **form)
    return shown(row, make_tokenizer())


def test_of_a_conversation_each_answer_is_learned(folder: str) -> None:
    got = of_demo(folder, CHAT_TEMPLATE, TURNS, enable_concatenated_multi_turn=True)
    assert got == "<bos><|user|>1+2<|assistant|>|[3<eos>]<|user|>+4<|assistant|>[7<eos>]"
    got = of_demo(folder, CHAT_TEMPLATE, TURNS, system_prompt="Add.", enable_concatenated_multi_turn=True)
    assert got.startswith("<bos><|system|>Add.<|user|>1+2<|assistant|>|[3<eos>]")
    got = of_demo(folder, CHAT_TEMPLATE, TURNS)
    assert got == "<bos><|user|>1+2<|assistant|>3<eos><|user|>+4<|assistant|>|[7<eos>]"


def test_marks_of_the_template_say_what_is_learned(folder: str) -> None:
    got = of_demo(folder, MARKED, TURNS, enable_concatenated_multi_turn=True)
    assert got == "<bos><|user|>1+2\n<|assistant|>|[3<eos>]\n<|user|>+4\n<|assistant|>[7<eos>]"
    without = MARKED.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    assert of_demo(folder, without, TURNS, enable_concatenated_multi_turn=True) == got, "found by prefixes"


def test_marks_are_read_as_transformers_reads_them(folder: str) -> None:
    """Its own mask of token ids, of a tokenizer with one token per character."""
    inner = AutoTokenizer.from_pretrained(folder)
    theirs = inner.apply_chat_template(
        TURNS, chat_template=MARKED, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    (row,) = rows({"message": TURNS}, demo(folder, MARKED), enable_concatenated_multi_turn=True)
    ours = [0] * row.prompt_tokens + row.loss_mask.tolist()
    assert row.tokens.tolist() == theirs["input_ids"][: len(ours)]
    assert ours == theirs["assistant_masks"][: len(ours)]
    assert not any(theirs["assistant_masks"][len(ours) :])


def test_tools_and_calls_are_the_templates(folder: str) -> None:
    tools, call = [{"name": "add"}], {"role": "assistant", "content": None, "tool_calls": [{"name": "add"}]}
    talk = [TURNS[0], call, {"role": "tool", "content": "3"}, TURNS[1]]
    want = "<bos>TOOLS add\n<|user|>1+2\n<|assistant|>|[call add<eos>]\n<|tool|>3\n<|assistant|>[3<eos>]"
    for value in (tools, json.dumps(tools)):
        assert of_demo(folder, MARKED, talk, record={"tools": value}, enable_concatenated_multi_turn=True) == want
    got = of_demo(folder, MARKED, TURNS[:2], record={"mine": tools}, tools_key="mine")
    assert got == "<bos>TOOLS add\n<|user|>1+2\n<|assistant|>|[3<eos>]"
    (row,) = rows({"prompt": "1", "response": "2", "tools": tools}, demo(folder, MARKED), prompt_type="plaintext")
    assert shown(row, make_tokenizer()) == "<bos>TOOLS add\n<|user|>1\n<|assistant|>|[2<eos>]"


def test_variables_reach_the_template(folder: str) -> None:
    thought = [TURNS[0], {"role": "assistant", "content": "<think>3"}]
    assert of_demo(folder, MARKED, thought, arguments={"enable_thinking": True}).endswith(
        "<|assistant|><think>|[3<eos>]"
    )
    assert of_demo(folder, MARKED, thought).endswith("<|assistant|>|[<think>3<eos>]")


def test_one_turn_of_a_conversation_is_the_row_without_it() -> None:
    for length in (100, 25, 5):
        one, two = (
            rows({"message": TURNS[:2]}, ByteTokenizer(), length=length, enable_concatenated_multi_turn=multi)[0]
            for multi in (False, True)
        )
        assert one.tokens.tolist() == two.tokens.tolist()
        assert one.cut == two.cut
        assert one.loss_mask.tolist() == two.loss_mask.tolist()
        assert one.prompt_tokens == two.prompt_tokens


def test_a_long_conversation_loses_its_end() -> None:
    (row,) = rows({"message": TURNS}, ByteTokenizer(), length=30, enable_concatenated_multi_turn=True)
    assert row.cut == "response"
    assert len(row.tokens) == 30
    assert bytes(int(token) for token in row.tokens) == b"user: 1+2\nassistant: 3\nuser: +4"[:30]
    assert row.loss_mask.tolist() == [1, 1] + [0] * (30 - row.prompt_tokens - 2)


def test_a_template_that_forgets_thoughts_is_refused(folder: str) -> None:
    forgetful = (
        "{% for message in messages %}<|{{ message.role }}|>"
        "{{ message.content if loop.last or message.role == 'user' else message.content[-1:] }}{{ eos_token }}"
        "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    talk = [TURNS[0], {"role": "assistant", "content": "so 3"}, *TURNS[2:]]
    with pytest.raises(DataError, match=r"rewrites number 1 .*generation"):
        of_demo(folder, forgetful, talk, enable_concatenated_multi_turn=True)


CHOSEN, REJECTED = {"role": "assistant", "content": "3"}, {"role": "assistant", "content": "4"}


@pytest.mark.parametrize(
    "record",
    [
        {"message": TURNS[:1], "chosen": [CHOSEN], "rejected": [REJECTED]},
        {"message": TURNS[:1], "chosen": CHOSEN, "rejected": REJECTED},
        {"message": json.dumps(TURNS[:1]), "chosen": json.dumps([CHOSEN]), "rejected": [REJECTED]},
        {"chosen": [TURNS[0], CHOSEN], "rejected": [TURNS[0], REJECTED]},
    ],
    ids=["lists", "objects", "json", "no prompt of its own"],
)
def test_a_preference_is_two_rows_chosen_first(folder: str, record: dict[str, Any]) -> None:
    made = rows(record, demo(folder), schema="dpo")
    start = "<bos><|user|>1+2<|assistant|>|"
    assert [shown(row, make_tokenizer()) for row in made] == [f"{start}[3<eos>]", f"{start}[4<eos>]"]


def test_a_raw_preference_is_texts() -> None:
    record = {"question": "1+2=", "good": "3", "bad": "12"}
    form = {"prompt_key": "question", "chosen_key": "good", "rejected_key": "bad", "prompt_type": "raw"}
    chosen, rejected = rows(record, ByteTokenizer(), schema="dpo", **form)
    assert chosen.tokens.tolist() == [*b"1+2=3", EOS]
    assert rejected.tokens.tolist() == [*b"1+2=12", EOS]
    assert (chosen.prompt_tokens, chosen.loss_mask.tolist(), rejected.loss_mask.tolist()) == (4, [1, 1], [1, 1, 1])


def test_a_plain_preference_is_a_conversation(folder: str) -> None:
    record = {"q": "1+2", "good": "3", "bad": "4", "s": "Add."}
    form = {"prompt_key": "q", "chosen_key": "good", "rejected_key": "bad", "prompt_type": "plaintext"}
    made = rows(record, demo(folder), schema="dpo", system_prompt_key="s", **form)
    start = "<bos><|system|>Add.<|user|>1+2<|assistant|>|"
    assert [shown(row, make_tokenizer()) for row in made] == [f"{start}[3<eos>]", f"{start}[4<eos>]"]


def test_a_preference_without_room_for_its_answers_teaches_nothing() -> None:
    record = {"prompt": "123456", "chosen": "ab", "rejected": "c"}
    form = {"schema": "dpo", "prompt_type": "raw"}
    chosen, rejected = rows(record, ByteTokenizer(), length=6, **form)
    assert [*chosen.loss_mask, *rejected.loss_mask] == [0, 0]
    assert (chosen.cut, rejected.cut) == ("prompt", "prompt")
    chosen, rejected = rows(record, ByteTokenizer(), length=8, **form)
    assert (chosen.cut, rejected.cut, rejected.loss_mask.tolist()) == ("response", "", [1, 1])


def test_of_a_text_every_token_is_learned(folder: str) -> None:
    (row,) = rows({"text": "ab c"}, ByteTokenizer(), schema="cpt", prompt_type="raw", prompt_key="text")
    assert row.tokens.tolist() == [*b"ab c", EOS]
    assert (row.prompt_tokens, row.loss_mask.tolist()) == (1, [1, 1, 1, 1])
    (row,) = rows({"message": TURNS[:2]}, demo(folder), schema="cpt")
    assert shown(row, make_tokenizer()) == "<bos>|[<|user|>1+2<|assistant|>3<eos>]"
    (row,) = rows({"prompt": "abcdef"}, ByteTokenizer(), schema="cpt", prompt_type="raw", length=4)
    assert (row.tokens.tolist(), row.cut) == ([*b"abcd"], "response")


@pytest.mark.parametrize("completion", [[CHOSEN], CHOSEN, json.dumps([CHOSEN])], ids=["list", "object", "json"])
@pytest.mark.parametrize(("label", "desirable"), [(True, True), (False, False), (1, True), (0, False)])
def test_a_labelled_answer_is_one_row(folder: str, completion: Any, label: Any, desirable: bool) -> None:
    record = {"prompt": TURNS[:1], "completion": completion, "label": label}
    (row,) = rows(record, demo(folder), schema="kto", messages_key="prompt")
    assert shown(row, make_tokenizer()) == "<bos><|user|>1+2<|assistant|>|[3<eos>]"
    assert row.desirable is desirable


def test_a_raw_labelled_answer_is_texts() -> None:
    form = {"schema": "kto", "prompt_type": "raw"}
    (row,) = rows({"prompt": "1+2=", "completion": "3", "label": False}, ByteTokenizer(), **form)
    assert (row.tokens.tolist(), row.prompt_tokens, row.desirable) == ([*b"1+2=3", EOS], 4, False)
    form |= {"prompt_key": "q", "completion_key": "a", "label_key": "thumb"}
    (row,) = rows({"q": "1+2=", "a": "3", "thumb": True}, ByteTokenizer(), length=4, **form)
    assert (row.cut, row.loss_mask.tolist(), row.desirable) == ("prompt", [0], True)


PLAIN_KTO = {"prompt": "a", "completion": "b", "label": True}


@pytest.mark.parametrize(
    ("schema", "record", "form", "field", "message"),
    [
        *(
            ("kto", {**PLAIN_KTO, "label": label}, {"prompt_type": "raw"}, "label", f"has {shown} under 'label'")
            for label, shown in (("yes", '"yes"'), (2, "2"), (1.5, "1.5"), ([True], r"\[true\]"), ("y" * 99, '"y{39}…'))
        ),
        ("kto", {**PLAIN_KTO, "label": None}, {"prompt_type": "raw"}, "label", "null under 'label'"),
        ("kto", {"prompt": "a", "label": True}, {"prompt_type": "raw"}, "completion", "no value under 'comple"),
        ("kto", {**PLAIN_KTO, "prompt": ""}, {"prompt_type": "raw"}, "completion", "empty prompt"),
        ("kto", {"message": TURNS[:1], "completion": TURNS[0], "label": 1}, {}, "completion", "not an answer"),
        ("kto", {"completion": [CHOSEN], "label": True}, {}, "message", "no value under 'message'"),
        (
            "kto",
            {"prompt": "a", "chosen": "b", "rejected": "c"},
            {"prompt_type": "raw"},
            "completion",
            "leave schema_type out",
        ),
        ("dpo", PLAIN_KTO, {"prompt_type": "raw"}, "chosen", "write schema_type: kto"),
        ("dpo", {"prompt": "a", "chosen": "b"}, {"prompt_type": "raw"}, "rejected", "no value under 'rejected'"),
        ("dpo", {"prompt": "a", "chosen": [CHOSEN], "rejected": "c"}, {"prompt_type": "raw"}, "chosen", "a list"),
        ("dpo", {"message": TURNS[:1], "chosen": "b", "rejected": "c"}, {}, "chosen", "not a list of objects"),
        ("dpo", {"message": TURNS[:1], "chosen": TURNS[0], "rejected": CHOSEN}, {}, "chosen", "not an answer"),
        ("dpo", {"chosen": [CHOSEN], "rejected": [REJECTED]}, {}, "chosen", "not an answer"),
        ("dpo", {"prompt": "", "chosen": "b", "rejected": "c"}, {"prompt_type": "raw"}, "chosen", "empty prompt"),
        ("sft", {"prompt": "", "response": "b"}, {"prompt_type": "plaintext"}, "prompt", "empty prompt"),
        (
            "sft",
            {"prompt": "a", "response": "b", "tools": [{}]},
            {"prompt_type": "raw"},
            "tools",
            "write prompt_type: pl",
        ),
        ("cpt", {"prompt": ""}, {"prompt_type": "raw"}, "prompt", "empty text"),
        ("cpt", {"prompt": ["a"]}, {"prompt_type": "raw"}, "prompt", "a list"),
        ("cpt", {"text": "a"}, {"prompt_type": "raw"}, "prompt", "no value under 'prompt'"),
        ("sft", {"message": TURNS, "tools": "{"}, {}, "tools", "not JSON"),
        ("sft", {"message": TURNS, "tools": {"name": "add"}}, {}, "tools", "not a list of objects"),
        ("sft", {"message": TURNS[1:]}, {"enable_concatenated_multi_turn": True}, None, "begin with the assistant"),
        ("sft", {"message": TURNS[:1]}, {"enable_concatenated_multi_turn": True}, None, "no message of the assistant"),
    ],
)
def test_rows_that_teach_nothing_are_refused(
    schema: str, record: dict[str, Any], form: dict[str, Any], field: str | None, message: str
) -> None:
    with pytest.raises(DataError, match=message) as caught:
        rows(record, ByteTokenizer(), schema=schema, **form)
    assert caught.value.field == field
    assert "row 3" in str(caught.value.where)


def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path) -> None:
    lines = ['{"prompt": "a", "response": "b"}', "", '{"prompt": "a"}']
    (tmp_path / "train_0.jsonl").write_text(lines[0] + "\n")
    (tmp_path / "train_1.jsonl").write_text("\n".join(lines))
    spec = TasksetSpec(name="t", path=str(tmp_path), format=Format(prompt_type="raw"))
    with Taskset.open(spec) as taskset:
        assert len(taskset.train_rows(1, tokenizer=ByteTokenizer(), max_model_len=9)) == 1
        with pytest.raises(DataError, match="no value under 'response'") as caught:
            taskset.train_rows(2, tokenizer=ByteTokenizer(), max_model_len=9)
        assert str(caught.value.where).startswith(f"{tmp_path / 'train_1.jsonl'}:3, taskset 't'")


def test_a_conversation_for_bytes_is_by_prefixes() -> None:
    assert ByteTokenizer().marked_text((Message("user", "hi"),)) is None
