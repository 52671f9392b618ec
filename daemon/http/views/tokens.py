"""The tokens of an experience in windows: ids, texts, log-probabilities, weight versions, mask and advantages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta

from rftd.daemon.http.views.experiences import ExperienceId
from rftd.daemon.http.views.route import After, Daemon, Name, Offset, read
from rftd.ops.errors import RftdError
from rftd.storage.queries.experiences import ExperienceRow, find_experience, get_experience
from rftd.storage.queries.rollout_rows import plan_of

if TYPE_CHECKING:
    from rftd.daemon.text.transcript import ReadRollout, TextTools

WindowTokens = Annotated[int, Meta(ge=1, le=8192)]
"""Number of tokens in a window, from 1 to 8,192."""
_PIECE_CHARS = 200
"""Maximum number of characters shown for one token."""


class TokenWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens [first, first + n) of an experience, in columns of equal length; prompt tokens have only ids and texts."""

    experience: str
    """Id of the experience."""
    tokens: int
    """Number of all tokens: prompt and response or, with several steps, step after step."""
    prompt_tokens: int
    """Number of prompt tokens, over all steps."""
    first: int
    """Index of the first token of the window."""
    ids: list[int]
    """Ids of the tokens in the window."""
    texts: list[str]
    """The text added by each token; empty without a tokenizer."""
    steps: list[int]
    """Number of the token's step, from 0."""
    response: list[bool]
    """True for a token of a response."""
    drawn: list[bool]
    """True for a token drawn by the model."""
    mask: list[int]
    """1 for a trained token, else 0."""
    logprobs: list[float | None]
    """Log-probability of a drawn token under the weights that drew it."""
    processed_logprobs: list[float | None]
    """Log-probability of a drawn token in the distribution sampled from; empty unless requested by the experiment."""
    versions: list[int | None]
    """Weight version behind a response token."""
    advantages: list[float | None]
    """Advantage of a trained token's rollout or step in its group; empty without one, and a note gives the reason."""
    next: int | None
    """`first` of the next window; null at the end."""
    notes: list[str]
    """Reasons for missing columns."""


@read("/v1/experiments/{name}/experiences/{experience}/tokens", TokenWindow, tag="experiences", name="tokens")
async def tokens(
    daemon: Daemon, name: Name, experience: ExperienceId, first: Offset = 0, n: WindowTokens = 1024, after: After = None
) -> TokenWindow:
    """A window of an experience's tokens: `n` tokens from `first` on, prompt tokens included."""
    from rftd.daemon.text.step_advantages import advantages_of_rollout
    from rftd.daemon.text.transcript import TextTools, rollout_of

    id = await daemon.find(name, after)
    async with daemon.read() as connection:
        row = await get_experience(connection, await find_experience(connection, id, experience))
        plan_place = await plan_of(connection, UUID(row.id))
    tools = TextTools(daemon.log, daemon.texts, await daemon.operations.text_origin(id))
    rollout = await rollout_of(tools, row)
    if not rollout.turns:
        return _empty(row, first, list(rollout.notes))
    pieces, notes = await _pieces(tools, rollout, first, n)
    advantages, note = await advantages_of_rollout(tools, rollout, plan_place)
    notes = [*rollout.notes, *notes, *([note] if note else [])]
    return _window(rollout, first, n, pieces, advantages, notes)


async def _pieces(tools: TextTools, rollout: ReadRollout, first: int, n: int) -> tuple[list[str], list[str]]:
    """Returns the text of each token of the window, or a note."""
    from rftd.daemon.text.texts import WantedText

    # One token more in front: some tokens lose their space at the beginning of a text.
    start = max(0, first - 1)
    ids = rollout.arrays["tokens"].view()[start : first + n].astype("u4")
    wanted = WantedText(ids.tobytes(), pieces=True)
    try:
        texts, note = await tools.texts.decode(tools.tokenizer(rollout.row.stage), [wanted], chars=_PIECE_CHARS)
    except RftdError as error:
        return [], [f"no text, only ids: {error.what}"]
    return list(texts[wanted].pieces[first - start :]), [note] if note else []


def _window(
    rollout: ReadRollout, first: int, n: int, pieces: list[str], advantages: Sequence[float], notes: list[str]
) -> TokenWindow:
    """Returns `n` tokens of a rollout from `first` on, with mask, log-probability, version and advantage of each."""
    import numpy as np

    from rftd.daemon.text.passages import drawn_tokens

    event = rollout.event
    assert event is not None
    ids = rollout.arrays["tokens"].view()
    mask = rollout.arrays["loss_mask"].view()
    # The number of each token among the response tokens, which most columns count; -1 for prompt tokens.
    numbers = np.full(len(ids), -1)
    steps = np.zeros(len(ids), int)
    end = 0
    for step, turn in enumerate(rollout.turns):
        begin = end + len(turn.prompt)
        end = begin + len(turn.answer)
        numbers[begin:end] = np.arange(turn.start, turn.start + len(turn.answer))
        steps[begin - len(turn.prompt) :] = step
    numbers = numbers[first : first + n]
    response = (numbers >= 0) & (numbers < len(mask))
    numbers = np.where(response, numbers, 0)
    versions = np.full(len(mask), -1, np.int64)
    for span in event.spans:
        versions[span.start : span.end] = span.version
    drawn = response & drawn_tokens(event, mask)[numbers] if len(mask) else response

    def column(values: Any, shown: Any) -> list[Any]:
        """Returns the values of the window's tokens, with None where not shown."""
        picked = values[numbers].tolist() if len(values) else [None] * len(numbers)
        return [value if is_shown else None for value, is_shown in zip(picked, shown.tolist(), strict=True)]

    flags = [flag or 0 for flag in column(mask, response)]
    processed = rollout.arrays.get("processed_logprobs")
    return TokenWindow(
        experience=rollout.row.id,
        tokens=len(ids),
        prompt_tokens=event.prompt_tokens,
        first=first,
        ids=ids[first : first + n].tolist(),
        texts=pieces,
        steps=steps[first : first + n].tolist(),
        response=response.tolist(),
        drawn=drawn.tolist(),
        mask=flags,
        logprobs=column(rollout.arrays["logprobs"].view(), drawn),
        processed_logprobs=[] if processed is None else column(processed.view(), drawn),
        versions=column(versions, response & (versions[numbers] >= 0) if len(mask) else response),
        advantages=_advantages(advantages, steps[first : first + n].tolist(), flags),
        next=first + n if first + n < len(ids) else None,
        notes=notes,
    )


def _advantages(advantages: Sequence[float], steps: list[int], mask: list[int]) -> list[float | None]:
    """Returns the advantage of each trained token: of its rollout, or of its step where each step has one."""
    if not advantages:
        return []
    last = len(advantages) - 1
    return [advantages[min(step, last)] if flag else None for step, flag in zip(steps, mask, strict=True)]


def _empty(row: ExperienceRow, first: int, notes: list[str]) -> TokenWindow:
    """Returns the window of an experience whose payload is missing."""
    return TokenWindow(
        experience=row.id,
        tokens=row.prompt_tokens + row.response_tokens,
        prompt_tokens=row.prompt_tokens,
        first=first,
        ids=[],
        texts=[],
        steps=[],
        response=[],
        drawn=[],
        mask=[],
        logprobs=[],
        processed_logprobs=[],
        versions=[],
        advantages=[],
        next=None,
        notes=notes,
    )
