"""Chats of several turns: what was drawn is continued, in whichever tokens it was drawn."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pytest

from rftd.ops.errors import RolloutError
from rftd.streams.events.experience import Span
from rftd.streams.spec.spec import ModelSpec, SamplingSpec
from rftd.workers.datasets.byte_tokenizer import EOS, ByteTokenizer
from rftd.workers.datasets.message import Message
from rftd.workers.generation.engine import Generation, GenerationRequest
from rftd.workers.generation.model import Model
from rftd.workers.workflows.trajectory import Trajectory

pytestmark = pytest.mark.anyio

PAIR = 300
"""Another id of the text `ab`."""


class Merging(ByteTokenizer):
    """Bytes, and one id for `ab`, in a template that ends each answer; a text is encoded with that id."""

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        return [each for word in text.split("$") for each in (*self._merged(word), EOS)][:-1]

    def _merged(self, text: str) -> list[int]:
        return [each for piece in text.split("ab") for each in (*piece.encode(), PAIR)][:-1]

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        return "".join("ab" if token == PAIR else chr(token) for token in tokens if token != EOS)

    def chat_text(self, messages: Sequence[Message], *, generation_prompt: bool, tools: str = "") -> str:
        ends = {"assistant": "$"}
        text = "".join(f"<{message.role}>{message.content}{ends.get(message.role, '')}" for message in messages)
        return text + "<assistant>" if generation_prompt else text


class Forgetful(Merging):
    """Its template shows of answers only what comes after a thought, which ends with a stroke."""

    def chat_text(self, messages: Sequence[Message], *, generation_prompt: bool, tools: str = "") -> str:
        short = [
            Message(each.role, each.content.split("/")[-1]) if each.role == "assistant" else each for each in messages
        ]
        return super().chat_text(short, generation_prompt=generation_prompt)


class Scripted:
    """Draws what it is told to, and notes what it was asked."""

    version = (0, 0)

    def __init__(self, *answers: Sequence[int]) -> None:
        self._answers = list(answers)
        self.prompts: list[list[int]] = []

    async def generate(self, request: GenerationRequest) -> Generation:
        self.prompts.append(list(request.prompt))
        tokens = tuple(self._answers.pop(0))
        spans = (Span(0, 0, 0, len(tokens)),)
        return Generation(tokens=tokens, logprobs=(-1.0,) * len(tokens), spans=spans, finish="stop")


def model_on(engine: Scripted, tokenizer: ByteTokenizer) -> Model:
    spec = ModelSpec(path="", max_model_len=200, max_prompt_tokens=150, max_response_tokens=40)
    return Model(engine, tokenizer, spec=spec, sampling=SamplingSpec(), rollout=uuid.UUID(int=1))  # type: ignore[arg-type]


ASK, AGAIN = Message("user", "q"), Message("user", "r")
LETTERS = [*b"ab"]


@pytest.mark.parametrize("first", [[PAIR, EOS], [*LETTERS, EOS], LETTERS], ids=["as encoded", "letters", "cut"])
@pytest.mark.parametrize("prefix", ["", "so "])
async def test_the_second_turn_goes_on_from_the_drawn_ids(first: list[int], prefix: str) -> None:
    engine = Scripted(first, [*b"x", EOS], [*b"y"])
    model = model_on(engine, Merging())
    trajectory = Trajectory()
    messages = [ASK]
    for _ in range(3):
        response = await model.chat(messages, reply_prefix=prefix)
        trajectory.add(response)
        messages += [Message("assistant", response.text), AGAIN]
    begun = Merging().encode(f"<user>q<assistant>{prefix}")
    ended = [*begun, *first, *([] if first[-1] == EOS else [EOS])]
    again = Merging().encode(f"<user>r<assistant>{prefix}")
    assert engine.prompts == [begun, [*ended, *again], [*ended, *again, *b"x", EOS, *again]]
    assert list(trajectory.tokens) == [*engine.prompts[-1], *b"y"]


async def test_each_of_two_conversations_goes_on_from_its_own_ids() -> None:
    engine = Scripted([PAIR, EOS], [*LETTERS, EOS], [*b"x"], [*b"y"])
    model = model_on(engine, Merging())
    for _ in range(2):
        await model.chat([ASK])
    for _ in range(2):
        await model.chat([ASK, Message("assistant", "ab"), AGAIN])
    drawn = [prompt[len(engine.prompts[0]) :] for prompt in engine.prompts[2:]]
    assert [ids[: ids.index(EOS)] for ids in drawn] == [[PAIR], LETTERS]


async def test_a_template_that_forgets_is_no_matter_where_the_text_is_passed_on() -> None:
    engine = Scripted([*b"a/b", EOS], [*b"x"])
    model = model_on(engine, Forgetful())
    trajectory = Trajectory()
    trajectory.add(await model.chat([ASK]))
    trajectory.add(await model.chat([ASK, Message("assistant", "a/b"), AGAIN]))
    assert list(trajectory.tokens)[: len(engine.prompts[0]) + 4] == [*engine.prompts[0], *b"a/b", EOS]


async def test_an_answer_that_was_changed_says_how_to_pass_it_on() -> None:
    engine = Scripted([*LETTERS, EOS], [*b"x"])
    model = model_on(engine, Merging())
    trajectory = Trajectory()
    trajectory.add(await model.chat([ASK]))
    with pytest.raises(RolloutError, match=r"pass each answer on as its response\.text"):
        trajectory.add(await model.chat([ASK, Message("assistant", "AB"), AGAIN]))
