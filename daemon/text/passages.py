"""A rollout's ids in turns and parts: prompts, drawn tokens, and tokens written by the workflow or a tool."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from rftd.streams.events.experience import ExperienceProduced
    from rftd.streams.log.arrays import Array

PartWriter = Literal["model", "workflow", "tool"]
"""PartWriter of a part of an answer."""
_TOOL: Final = re.compile(
    r"<\|im_start\|>\s*tool\b|<tool_response>|<\|start_header_id\|>\s*(ipython|tool)\b|\[TOOL_RESULTS\]|<\|observation\|>"
    r"|<\|tool_outputs_begin\|>|<｜tool▁outputs?▁begin｜>|<start_of_turn>tool\b|<\|start\|>functions\."
)
"""Marks of a tool's answer in the chat templates of Qwen, Llama, Mistral, GLM, DeepSeek, Gemma and gpt-oss."""


class AnswerPart(NamedTuple):
    """Response tokens [start, end) of a writer; offsets count from the first response token of the rollout."""

    start: int
    """Offset of the part's first token."""
    end: int
    """Offset behind the part's last token."""
    by_model: bool
    """True if the model drew the tokens."""


class RolloutTurn(NamedTuple):
    """A prompt and its answer: the ids, and the answer's parts by writer."""

    prompt: NDArray[Any]
    """Token ids of the turn's prompt."""
    answer: NDArray[Any]
    """Token ids of the turn's answer."""
    parts: tuple[AnswerPart, ...]
    """All parts of the answer; a single part if the model drew the whole answer."""
    start: int
    """Number of response tokens before the answer."""


def turns_of(event: ExperienceProduced, arrays: Mapping[str, Array]) -> list[RolloutTurn]:
    """Returns the turns of a rollout with its loaded arrays; a single turn unless the rollout has several steps."""
    tokens = arrays["tokens"].view().astype("u4", copy=False)
    drawn = drawn_tokens(event, arrays["loss_mask"].view())
    # Steps come from a record: numbers beyond the tokens shorten the slices.
    lengths = [(step.tokens, step.prompt_tokens) for step in event.steps] or [(len(tokens), event.prompt_tokens)]
    turns = []
    first = answered = 0
    for count, prompt_tokens in lengths:
        answer = tokens[first + prompt_tokens : first + count]
        parts = tuple(_split_by_writer(drawn[answered : answered + len(answer)], answered))
        turns.append(RolloutTurn(tokens[first : first + prompt_tokens], answer, parts, answered))
        first += count
        answered += len(answer)
    return turns


def drawn_tokens(event: ExperienceProduced, mask: NDArray[Any]) -> NDArray[Any]:
    """Returns True for each drawn response token; without recorded settings, for each trained token  # [R] bool"""
    import numpy as np

    if not event.sampling:
        return mask.astype(bool) if len(mask) and mask.any() else np.ones(len(mask), bool)
    drawn = np.zeros(len(mask), bool)
    for span in event.sampling:
        drawn[span.start : span.end] = True
    return drawn


def writer_of(text: str, *, by_model: bool) -> PartWriter:
    """Returns the writer of a part: a part not drawn is a tool's if the text has the marks of a tool."""
    return "model" if by_model else "tool" if _TOOL.search(text) else "workflow"


def _split_by_writer(drawn: NDArray[Any], first: int) -> Iterator[AnswerPart]:
    """Yields the parts of an answer; `first` is the offset of its first token."""
    start = first
    for by_model, flags in groupby(drawn.tolist()):
        end = start + len(list(flags))
        yield AnswerPart(start, end, by_model)
        start = end
