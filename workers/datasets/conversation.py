"""Conversations as token ids: the template's text before an answer, and the assistant's words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rftd.workers.datasets.message import Message
from rftd.workers.datasets.record import DatasetRecord
from rftd.workers.datasets.tokenizer import Tokenizer

Ids = list[int]
"""Token ids."""


def answered(
    reader: DatasetRecord,
    tokenizer: Tokenizer,
    before: Sequence[Message],
    answer: Sequence[Message],
    reply_prefix: str = "",
) -> tuple[Ids, Ids]:
    """Returns the ids of the prompt (the messages `before`, and the opening of the assistant's turn), and of the
    response.

    A `reply_prefix` at the beginning of the answer belongs to the prompt. Raises DataError if the template renders the
    beginning differently with the answer present, or drops part of the answer.
    """
    tools = reader.tools()
    whole = tokenizer.chat_text((*before, *answer), generation_prompt=False, tools=tools)
    # Cut from the whole text, then encoded in two parts: encoded as one, a token could span prompt and response.
    prompt = _prompt_text(reader, tokenizer, whole, before, tools)
    for message in answer:
        # The quick test first: the exact one renders the template once more.
        if message.role == "assistant" and message.content.strip() not in whole[len(prompt) :]:
            closed = tokenizer.chat_text(before, generation_prompt=False, tools=tools)
            _check_complete(reader, message, whole.removeprefix(closed))
    if reply_prefix and whole[len(prompt) :].startswith(reply_prefix):
        prompt += reply_prefix
    return tokenizer.encode(prompt), _up_to_end(tokenizer, tokenizer.encode(whole[len(prompt) :]))


def spoken(reader: DatasetRecord, tokenizer: Tokenizer, messages: Sequence[Message]) -> tuple[Ids, list[int]]:
    """Returns the ids of a conversation up to the assistant's last token, and a mask with 1 for the assistant's tokens.

    The template's `{% generation %}` marks decide; without marks, an answer is the text added to the conversation
    rendered before it. Pieces are encoded separately, like a rollout's prompt and response. Raises DataError without an
    answer, or if the template renders an earlier turn differently with a later one present.
    """
    tools = reader.tools()
    marked = tokenizer.marked_text(messages, tools=tools)
    whole = tokenizer.chat_text(messages, generation_prompt=False, tools=tools) if marked is None else ""
    ids: Ids = []
    mask: list[int] = []
    for text, by_assistant in _marked_pieces(reader, tokenizer, messages, whole, tools) if marked is None else marked:
        piece = _without_doubles(tokenizer, tokenizer.encode(text)) if by_assistant else tokenizer.encode(text)
        learned = len(piece) if by_assistant else 0
        if by_assistant and marked is None:  # templates write a line break after the end of a turn, spoken by nobody
            learned = _end(tokenizer, piece) or learned
        elif not by_assistant and mask[-1:] == [1] and piece and piece[0] in tokenizer.eos_ids:
            if ids[-1] == piece[0]:  # the answer already contained its end
                piece = piece[1:]
            # Marks without the end of a turn would teach a model that never stops; a rollout samples that end.
            elif ids[-1] not in tokenizer.eos_ids:
                learned = 1
        ids += piece
        mask += [1] * learned + [0] * (len(piece) - learned)
    rendered = whole if marked is None else "".join(text for text, _ in marked)
    for message in messages:
        if message.role == "assistant":
            _check_complete(reader, message, rendered)
    if 1 not in mask:
        raise reader.error("has no message of the assistant that the chat template marks as its own")
    # A rollout stops at the assistant's last token, so text of the template after it is not learned.
    last = len(mask) - mask[::-1].index(1)
    ids = ids[:last]
    mask = mask[:last]
    # Marked templates end with their marks; others get the id at which a rollout stops.
    if marked is None and ids[-1] not in tokenizer.eos_ids:
        ids = [*ids, *tokenizer.eos_ids[:1]]
        mask = [*mask, *[1] * len(tokenizer.eos_ids[:1])]
    return ids, mask


def _marked_pieces(
    reader: DatasetRecord, tokenizer: Tokenizer, messages: Sequence[Message], whole: str, tools: str
) -> Iterator[tuple[str, bool]]:
    """Yields the text in pieces, each with True if spoken by the assistant. Raises DataError for a rewritten turn."""
    offset = 0
    for number, message in enumerate(messages):
        if message.role != "assistant":
            continue
        if not number:
            raise reader.error("has messages that begin with the assistant, without a message before")
        start = len(_prompt_text(reader, tokenizer, whole, messages[:number], tools))
        closed = tokenizer.chat_text(messages[: number + 1], generation_prompt=False, tools=tools)
        # A template may drop the thoughts of earlier turns when it sees a later one: no model was ever shown that text.
        if not whole.startswith(closed) or not offset <= start < len(closed):
            raise reader.error(
                f"has messages of which the chat template rewrites number {number} when it sees the later ones: use a "
                "template with {% generation %} marks, or leave enable_concatenated_multi_turn out"
            )
        yield whole[offset:start], False
        yield whole[start : len(closed)], True
        offset = len(closed)


def _prompt_text(reader: DatasetRecord, tokenizer: Tokenizer, whole: str, before: Sequence[Message], tools: str) -> str:
    """Returns the beginning of `whole` up to the assistant's next message."""
    prompt = tokenizer.chat_text(before, generation_prompt=True, tools=tools)
    if whole.startswith(prompt):
        return prompt
    # Some templates open the assistant's turn with more text than a complete one has (`<think>`).
    closed = tokenizer.chat_text(before, generation_prompt=False, tools=tools)
    prompt = _common_start(prompt, whole)
    if not prompt.startswith(closed):
        raise reader.error("has messages of which the chat template rewrites the beginning when it sees the end")
    return prompt


def _check_complete(reader: DatasetRecord, message: Message, rendered: str) -> None:
    """Returns if all text of the message is in the rendered text. Raises DataError.

    Templates of models with thoughts may drop the text before `</think>`: the remainder alone would be learned, after
    another opening than in rollouts. Blanks do not count, because many templates trim them.
    """
    if _letters(message.content) not in _letters(rendered):
        raise reader.error(
            "has an answer of which the chat template leaves text out (often a thought): use a template that renders "
            "it (model.custom_chat_template, format.chat_template), or take that text out of the answer"
        )


def _letters(text: str) -> str:
    """Returns the text without any white space."""
    return "".join(text.split())


def ended(tokenizer: Tokenizer, response: Ids) -> Ids:
    """Returns the ids of a response ending with exactly one end-of-sequence id."""
    last = len(response)
    while last and response[last - 1] in tokenizer.eos_ids:
        last -= 1
    # Of several ends the first: a rollout stops there.
    return response[: last + 1] if last < len(response) else [*response, *tokenizer.eos_ids[:1]]


def _without_doubles(tokenizer: Tokenizer, piece: Ids) -> Ids:
    """Returns the ids of an answer, with repeated ends of sequence reduced to one."""
    ends = tokenizer.eos_ids
    return [token for index, token in enumerate(piece) if not index or token not in ends or token != piece[index - 1]]


def _up_to_end(tokenizer: Tokenizer, response: Ids) -> Ids:
    """Returns the response up to its last end of sequence, or with one: a rollout stops there, and so does learning."""
    return ended(tokenizer, response[: _end(tokenizer, response) or len(response)])


def _end(tokenizer: Tokenizer, piece: Ids) -> int:
    """Returns the index behind the last end of sequence; 0 without one."""
    return max((index + 1 for index, token in enumerate(piece) if token in tokenizer.eos_ids), default=0)


def _common_start(first: str, second: str) -> str:
    """Returns the longest common beginning of two texts."""
    length = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        length += 1
    return first[:length]
