"""The part of a specification that says what the keys of a row hold."""

from __future__ import annotations

import msgspec


class FormatSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of a dataset row, and what they hold."""

    prompt_type: str = "messages"
    """`messages`; `plaintext`, texts that the chat template renders; `raw`, texts as they stand."""
    prompt_key: str = "prompt"
    response_key: str = "response"
    messages_key: str = "message"
    system_prompt: str | None = None
    system_prompt_key: str | None = None
    reply_prefix: str | None = None
    workflow_key: str = ""
    """A row that has it names its own workflow."""
    reward_fn_key: str = ""
    """A row that has it names its own reward."""
    category_key: str | None = None
    """A held-out row that has it is of the category that it names."""
    tools_key: str = "tools"
    chosen_key: str = "chosen"
    rejected_key: str = "rejected"
    completion_key: str = "completion"
    label_key: str = "label"
    enable_concatenated_multi_turn: bool = False
    """Every message of the assistant in a conversation to imitate is learned, not only the last."""
    chat_template: str | None = None
    enable_thinking: bool | None = None
    """A variable of the chat template, which is the model's if none is named."""
