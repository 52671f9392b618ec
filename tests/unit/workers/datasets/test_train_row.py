"""Rows to train on: prompt, response and mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from rftd.ops.errors import DataError
from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import TasksetSpec
from rftd.workers.datasets.byte_tokenizer import EOS, ByteTokenizer
from rftd.workers.datasets.message import Message
from rftd.workers.datasets.tokenizer import Tokenizer
from rftd.workers.datasets.train_row import TrainRow
from rftd.workers.datasets.train_rows import make_train_rows

CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]


def row(record: dict[str, Any], *, length: int = 100, tokenizer: Tokenizer | None = None, **form: Any) -> TrainRow:
    spec = TasksetSpec(name="t", path="rows.jsonl", format=Format(**form))
    (made,) = make_train_rows(record, spec=spec, row=3, tokenizer=tokenizer or ByteTokenizer(), max_model_len=length)
    return made


def parts(made: TrainRow) -> tuple[str, list[int]]:
    tokens = [int(token) for token in made.tokens]
    assert len(made.loss_mask) == len(tokens) - made.prompt_tokens
    return bytes(tokens[: made.prompt_tokens]).decode(), tokens[made.prompt_tokens :]


def test_raw_is_prompt_response_and_end() -> None:
    made = row({"prompt": "1+1=", "response": "2"}, prompt_type="raw")
    assert parts(made) == ("1+1=", [ord("2"), EOS])
    assert made.loss_mask.tolist() == [1, 1]
    assert made.cut == ""


def test_raw_has_the_prompt_that_a_rollout_has() -> None:
    form = {"prompt_type": "raw", "system_prompt": "Add.", "reply_prefix": ": "}
    assert parts(row({"prompt": "1+1", "response": ": 2"}, **form))[0] == "Add.\n1+1: "
    assert parts(row({"prompt": "1+1", "response": "2"}, **form)) == ("Add.\n1+1: ", [ord("2"), EOS])


def test_messages_are_a_prompt_and_the_rest() -> None:
    made = row({"message": CHAT}, system_prompt="Be kind.")
    assert parts(made) == ("system: Be kind.\nuser: hi\nassistant: ", [*b"ho\n", EOS])


def test_learning_stops_where_a_rollout_stops() -> None:
    class Ending(ByteTokenizer):
        """Its template ends the answer with `.` as the end of sequence, and a line break."""

        @property
        def eos_ids(self) -> tuple[int, ...]:
            return (ord("."),)

        def chat_text(self, messages: Sequence[Message], *, generation_prompt: bool, tools: str = "") -> str:
            text = "".join(f"{message.role}: {message.content}.\n" for message in messages)
            return text + "assistant: <t>" if generation_prompt else text

    assert parts(row({"message": CHAT}, tokenizer=Ending())) == ("user: hi.\nassistant: ", [*b"ho."])


def test_a_template_that_rewrites_history_is_refused() -> None:
    class Forgetful(ByteTokenizer):
        def chat_text(self, messages: Sequence[Message], *, generation_prompt: bool, tools: str = "") -> str:
            return f"{len(messages)} {messages[-1].content}"

    with pytest.raises(DataError, match="rewrites the beginning"):
        row({"message": CHAT}, tokenizer=Forgetful())


def test_a_long_response_loses_its_end_and_a_long_prompt_its_lesson() -> None:
    made = row({"prompt": "abcd", "response": "efgh"}, prompt_type="raw", length=6)
    assert (parts(made), made.loss_mask.tolist(), made.cut) == (("abcd", [*b"ef"]), [1, 1], "response")
    made = row({"prompt": "abcdef", "response": "gh"}, prompt_type="raw", length=6)
    assert (parts(made), made.loss_mask.tolist(), made.cut) == (("abcde", [*b"g"]), [0], "prompt")


@pytest.mark.parametrize(
    ("record", "form", "message"),
    [
        ({"prompt": "a"}, {"prompt_type": "raw"}, "no value under 'response'"),
        ({"prompt": "", "response": "a"}, {"prompt_type": "raw"}, "empty prompt"),
        ({"prompt": "a"}, {}, "(?s)no value under 'message'.*row 3"),
        ({"message": CHAT[:1]}, {}, "a prompt and then an answer"),
        ({"message": CHAT[1:]}, {}, "a prompt and then an answer"),
    ],
)
def test_rows_that_teach_nothing_are_refused(record: dict[str, Any], form: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        row(record, **form)
