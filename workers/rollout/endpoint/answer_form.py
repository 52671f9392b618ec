"""`AnswerForm`: how a model writes thoughts and calls of tools, by the names that vLLM has for the forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from rftd.streams.spec import ModelSpec
from rftd.workers.rollout.endpoint.json_calls import DEEPSEEK_V3, DEEPSEEK_V31, HERMES, LLAMA3, MISTRAL
from rftd.workers.rollout.endpoint.tool_calls import ToolForm
from rftd.workers.rollout.endpoint.written_calls import PYTHONIC, QWEN3
from rftd.workers.tasksets.tokenizer import Tokenizer

TOOL_FORMS: Final[Mapping[str, ToolForm]] = {
    "hermes": HERMES,
    "qwen3_coder": QWEN3,
    "qwen3_xml": QWEN3,
    "llama3_json": LLAMA3,
    "llama4_json": LLAMA3,
    "mistral": MISTRAL,
    "deepseek_v3": DEEPSEEK_V3,
    "deepseek_v31": DEEPSEEK_V31,
    "pythonic": PYTHONIC,
}
"""By `tool_call_parser`."""
DEFAULT_TOOLS: Final = "hermes"


class ThoughtForm(NamedTuple):
    """The marks of thoughts before an answer."""

    opens: str
    closes: str
    always: bool = False
    """Each answer begins with a thought, whether it is opened or not."""
    special: bool = False
    """The marks are special tokens."""

    def split(self, text: str, *, opened: bool) -> tuple[str | None, str]:
        """The thought, None without one, and the answer behind it. `opened` says that the prompt began the thought."""
        blank = len(text) - len(text.lstrip())
        marked = text.startswith(self.opens, blank)
        if not marked and not opened:
            return None, text
        thought, _, answer = text[blank + len(self.opens) if marked else 0 :].partition(self.closes)
        return thought, answer


THOUGHT_FORMS: Final[Mapping[str, ThoughtForm]] = {
    "deepseek_r1": ThoughtForm("<think>", "</think>", always=True),
    "step3": ThoughtForm("<think>", "</think>", always=True),
    "minimax_m2": ThoughtForm("<think>", "</think>", always=True),
    "qwen3": ThoughtForm("<think>", "</think>"),
    "glm45": ThoughtForm("<think>", "</think>"),
    "mistral": ThoughtForm("[THINK]", "[/THINK]", special=True),
    "seed_oss": ThoughtForm("<seed:think>", "</seed:think>"),
}
"""By `reasoning_parser`."""


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The marks by which the text of answers is taken apart."""

    tools: ToolForm = HERMES
    thoughts: ThoughtForm | None = None
    auto: bool = True
    """Calls are looked for where a client leaves it to the model whether it calls."""

    @classmethod
    def named(cls, tools: str, thoughts: str, *, auto: bool) -> AnswerForm:
        """The form with these names; of an empty one the default."""
        return cls(TOOL_FORMS[tools or DEFAULT_TOOLS], THOUGHT_FORMS[thoughts] if thoughts else None, auto)

    @classmethod
    def of(cls, model: ModelSpec) -> AnswerForm:
        """The form of a model, as the experiment names it."""
        return cls.named(model.tool_call_parser, model.reasoning_parser, auto=model.auto_tool_choice)

    def decoder(self, tokenizer: Tokenizer) -> Callable[[Sequence[int]], str] | None:
        """The decoder of the text that the form is read from; None where none of its marks is a special token."""
        if not (self.tools.special or (self.thoughts is not None and self.thoughts.special)):
            return None
        ends = frozenset(tokenizer.eos_ids)
        return lambda tokens: tokenizer.decode([token for token in tokens if token not in ends], special=True)
