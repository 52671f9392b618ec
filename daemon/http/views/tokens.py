"""The tokens of an experience in windows: ids, texts, log-probabilities, weight versions, mask and advantages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta

from rftd.daemon.http.views.experiences import ExperienceId
from rftd.daemon.http.views.route import After, Daemon, Name, Offset, command, read
from rftd.daemon.run.recomputation import Recomputation
from rftd.ops.errors import RftdError
from rftd.storage.queries.experiences import ExperienceRow, find_experience, get_experience
from rftd.storage.queries.rollout_rows import PlanPlace, plan_of

if TYPE_CHECKING:
    from rftd.daemon.run.supervisor.recomputing import PlannedStep, Recomputations
    from rftd.daemon.text.transcript import ReadRollout, TextTools
    from rftd.workers.training.terms_file import ReadTerms

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
    recomputation: Recomputation | None = None
    """State of the step's terms, recomputed on request; null without a request."""
    ratios: list[float | None] = []
    """Probability under the weights before the step, over the one when drawn; empty until recomputed, as are the
    columns below.
    """
    kls: list[float | None] = []
    """Estimated KL to the reference policy; empty for an objective without one."""
    policy_terms: list[float | None] = []
    """Term of the policy loss in the step's objective, weighted."""
    entropy_terms: list[float | None] = []
    """Term of the entropy bonus, weighted; empty for an objective without one."""
    kl_terms: list[float | None] = []
    """Term of the KL loss, weighted; empty for an objective without one."""
    objectives: list[float | None] = []
    """Sum of the terms; over all tokens of an optimizer step, the loss."""


class Recompute(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The empty body of POST /v1/experiments/{name}/experiences/{experience}/recompute."""


@command(
    "/v1/experiments/{name}/experiences/{experience}/recompute",
    Recompute,
    Recomputation,
    tag="experiences",
    optional=True,
    dry=True,
)
async def recompute(daemon: Daemon, body: Recompute, name: Name, experience: ExperienceId) -> Recomputation:
    """Recompute ratio, KL and terms of the objective at each token of the experience's step, by a replay.

    One step at a time, in a process beside no run of this daemon; the tokens then have the columns. Repeated, the
    request changes nothing. Nothing is appended to the log.
    """
    import asyncio

    from rftd.daemon.text.word_index import is_gone
    from rftd.ops.errors import ConflictError
    from rftd.streams.folds.spine import Kept

    if daemon.recomputations is None:
        raise ConflictError("this daemon decides nothing, and replays nothing", fix="ask the daemon that decides")
    id = await daemon.find(name)
    origin = await daemon.operations.text_origin(id)
    async with daemon.read() as connection:
        row = await get_experience(connection, await find_experience(connection, id, experience))
        plan = await plan_of(connection, UUID(row.id))
    if origin is None or origin.kept is not Kept.HERE:
        if is_gone(origin):
            await asyncio.to_thread(daemon.recomputations.forget, id)
        raise ConflictError("the experiment's files are archived or removed", fix="restore them: rftd restore NAME")
    if plan is None or not plan.executed:
        raise ConflictError(
            f"no step trained experience {row.id} yet" if row.state != "retired" else f"{row.id} was never trained",
            fix="see its state in rftd experiences show",
        )
    if plan.step <= origin.payloads_dropped_through:
        raise ConflictError(
            f"the tokens of steps up to {origin.payloads_dropped_through} were dropped by the keeping rules",
            fix="choose an experience of a later step",
        )
    return daemon.recomputations.request(_planned_step(id, plan))


def _planned_step(id: UUID, plan: PlanPlace) -> PlannedStep:
    from rftd.daemon.run.supervisor.recomputing import PlannedStep

    return PlannedStep(id, plan.step, plan.partition, plan.offset)


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
    window = _window(rollout, first, n, pieces, advantages, notes)
    if daemon.recomputations is None or plan_place is None:
        return window
    return await _with_terms(daemon.recomputations, window, rollout, _planned_step(id, plan_place))


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


async def _with_terms(
    recomputations: Recomputations, window: TokenWindow, rollout: ReadRollout, step: PlannedStep
) -> TokenWindow:
    """Returns the window with the state of the step's terms and, once recomputed, their columns; a damaged file of
    terms is deleted.
    """
    import asyncio

    from rftd.workers.training.terms_file import read_terms

    recomputation = recomputations.state(step)
    if recomputation is None or recomputation.state != "done":
        return msgspec.structs.replace(window, recomputation=recomputation)
    terms = await asyncio.to_thread(read_terms, recomputations.path_of(step), UUID(rollout.row.id))
    if terms is None:  # damaged, or removed a moment ago
        await asyncio.to_thread(recomputations.path_of(step).unlink, missing_ok=True)
        return window
    columns = _term_columns(terms, window, rollout)
    notes = [*window.notes, *terms.header.notes]
    if not columns:
        notes.append(f"no token of this experience was trained in step {step.step}")
    return msgspec.structs.replace(window, recomputation=recomputation, notes=notes, **columns)


def _term_columns(terms: ReadTerms, window: TokenWindow, rollout: ReadRollout) -> dict[str, list[float | None]]:
    """Returns the columns of the window's tokens by name, with the sum of the terms; empty if no token was trained in
    the step.
    """
    import numpy as np

    if not terms.columns:
        return {}
    whole: dict[str, list[float]] = {name: [] for name in terms.columns}
    response = 0
    for turn in rollout.turns:
        end = response + len(turn.answer)
        for name, column in terms.columns.items():
            whole[name] += [np.nan] * len(turn.prompt) + column[response:end].tolist()
        response = end
    last = window.first + len(window.ids)
    columns = {name: np.array(column[window.first : last], np.float64) for name, column in whole.items()}
    columns["objective"] = sum(
        (columns[name] for name in ("policy_term", "entropy_term", "kl_term") if name in columns),
        np.zeros(len(window.ids)),
    )
    return {
        f"{name}s": [number if math.isfinite(number) else None for number in column.tolist()]
        for name, column in columns.items()
    }


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
