"""Section `format` of a dataset: the contents of its rows' keys, for files and specifications."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from rftd.streams.spec.declaration import PLAIN, FieldEffect

_TEXT_ALONE: Final = FieldEffect("refused", "only text prompts are supported", "leave it out")


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """`format`: the keys of a row, by content; a key may lead into a column (`reward_model.ground_truth`)."""

    prompt_type: Literal["messages", "plaintext", "raw"] = "messages"
    """Form of a row: a list of messages; `plaintext`: texts for the chat template; `raw`: unchanged texts."""
    prompt_key: Annotated[str, PLAIN] = "prompt"
    """Key of the prompt."""
    response_key: Annotated[str, PLAIN] = "response"
    """Key of the response, or of a task's right answer."""
    system_prompt_key: Annotated[str | None, PLAIN] = None
    """Key of the system prompt; takes precedence over `system_prompt`."""
    system_prompt: Annotated[str | None, PLAIN] = None
    """System prompt of rows without one."""
    messages_key: Annotated[str, PLAIN] = "message"
    """Key of the conversation."""
    tools_key: Annotated[str, PLAIN] = "tools"
    """Key of the tools: a list of objects, or its JSON."""
    image_key: Annotated[str | None, PLAIN, _TEXT_ALONE] = None
    video_key: Annotated[str | None, PLAIN, _TEXT_ALONE] = None
    reply_prefix: Annotated[str | None, PLAIN] = None
    """Beginning of every response, as a part of the prompt."""
    workflow_key: Annotated[str, PLAIN] = ""
    """Key of a row's own workflow; empty: the taskset's for all rows."""
    reward_fn_key: Annotated[str, PLAIN] = ""
    """Key of a row's own reward; empty: the taskset's for all rows."""
    category_key: Annotated[str | None, PLAIN] = None
    """rftd only: key of a held-out row's category; evaluations have the figures of each category."""
    chosen_key: Annotated[str, PLAIN] = "chosen"
    """Key of the better of two answers."""
    rejected_key: Annotated[str, PLAIN] = "rejected"
    """Key of the worse of two answers."""
    completion_key: Annotated[str, PLAIN] = "completion"
    """Key of a labelled answer (`schema_type: kto`)."""
    label_key: Annotated[str, PLAIN] = "label"
    """Key of the label: true for a desirable answer."""
    enable_concatenated_multi_turn: bool = False
    """true: train on every message of the assistant in a conversation, not only the last."""
    chat_template: Annotated[str | None, PLAIN] = None
    """Chat template of rows to train on; tasks use the model's."""
    enable_thinking: bool | None = None
    """A variable of the chat template, for rows to train on; none: as in `model`."""
