"""Section `format` of a dataset: what the keys of its rows hold, as a file has it and a specification keeps it."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from rftd.streams.spec.declaration import PLAIN, FieldEffect

_TEXT_ALONE: Final = FieldEffect("refused", "models are asked with text alone", "leave it out")


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """`format`: the keys of a row, by what they hold; a key may lead into a column (`reward_model.ground_truth`)."""

    prompt_type: Literal["messages", "plaintext", "raw"] = "messages"
    """The form of a row: a list of messages; `plaintext`: texts for the chat template; `raw`: texts as they stand."""
    prompt_key: Annotated[str, PLAIN] = "prompt"
    """The key of the prompt."""
    response_key: Annotated[str, PLAIN] = "response"
    """The key of the response, or of a task's right answer."""
    system_prompt_key: Annotated[str | None, PLAIN] = None
    """The key of the system prompt; it wins over `system_prompt`."""
    system_prompt: Annotated[str | None, PLAIN] = None
    """The system prompt of rows that bring none."""
    messages_key: Annotated[str, PLAIN] = "message"
    """The key of the conversation."""
    tools_key: Annotated[str, PLAIN] = "tools"
    """The key of the tools: a list of objects, or its JSON."""
    image_key: Annotated[str | None, PLAIN, _TEXT_ALONE] = None
    video_key: Annotated[str | None, PLAIN, _TEXT_ALONE] = None
    reply_prefix: Annotated[str | None, PLAIN] = None
    """Text that every response begins with, as a part of the prompt."""
    workflow_key: Annotated[str, PLAIN] = ""
    """The key of a row's own workflow; empty: all have that of the taskset."""
    reward_fn_key: Annotated[str, PLAIN] = ""
    """The key of a row's own reward; empty: all have that of the taskset."""
    category_key: Annotated[str | None, PLAIN] = None
    """rftd only: the key of a held-out row's category; evaluations have the figures of each category."""
    chosen_key: Annotated[str, PLAIN] = "chosen"
    """The key of the better of two answers."""
    rejected_key: Annotated[str, PLAIN] = "rejected"
    """The key of the worse of two answers."""
    completion_key: Annotated[str, PLAIN] = "completion"
    """The key of a labelled answer (`schema_type: kto`)."""
    label_key: Annotated[str, PLAIN] = "label"
    """The key of its label: true if the answer is desirable."""
    enable_concatenated_multi_turn: bool = False
    """True: every message of the assistant in a conversation is imitated, not the last one alone."""
    chat_template: Annotated[str | None, PLAIN] = None
    """The template of rows to train on; tasks are asked in the model's."""
    enable_thinking: bool | None = None
    """A variable of the chat template, for rows to train on; none: as `model` says."""
