"""`RecordedRollout`: a dataset row with tokens, log-probabilities and reward of a rollout sampled earlier."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta

from rftd.ops.decoding import UNREADABLE, converted
from rftd.ops.errors import DataError
from rftd.streams.log.bounds import ROLLOUTS, Count, Finite, RoleName, Temperature

if TYPE_CHECKING:
    from rftd.workers.datasets.record import DatasetRecord

RECORDED: Final = "experience"
"""`schema_type` of rows with recorded rollouts."""
_LISTS: Final = ("tokens", "logprobs", "loss_mask", "steps", "metrics", "temperature")
"""Columns that may be JSON texts."""
_REQUIRED: Final = ("group", "tokens", "prompt_tokens", "logprobs", "reward")
"""Columns that every row has."""
_ROUNDING: Final = 1e-3
"""Maximum log-probability accepted: 0, that of a certain token, plus rounding."""
_FIX: Final = "write rows as rftd experiences rows --schema experience does"
"""Fix for an invalid row."""

_TokenId = Annotated[int, Meta(ge=0, lt=1 << 32)]
"""Token id of 32 bits."""


class RecordedStep(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and reward of one step (prompt and response) of a recorded rollout with several steps."""

    tokens: Annotated[int, Meta(ge=1)]
    """Number of tokens, prompt included."""
    prompt_tokens: Count
    """Number of prompt tokens."""
    reward: Finite
    """Reward of the step's sequence."""
    step_reward: Finite | None = None
    """Reward of the step itself; None without one."""
    state: str = ""
    """Equal texts for steps begun in one state of their environment; empty if unknown."""
    role: RoleName = ""
    """The agent behind the step; empty in a rollout of a single agent."""


class RecordedRollout(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded rollout of T tokens, the first P of them the prompt; R = T - P.

    With `steps`, T and P are sums over steps, and the lists contain one step after another.
    """

    group: str | int
    """Key of the group of answers to one task, for advantages; rows of a group are adjacent."""
    tokens: Annotated[list[_TokenId], Meta(min_length=2)]  # [T]
    """Token ids of prompt and response  # [T]"""
    prompt_tokens: Count
    """Number of prompt tokens."""
    logprobs: Annotated[list[float], Meta(min_length=1)]  # [R], under the weights that drew each token
    """Log-probability of each response token under the weights that sampled it  # [R]"""
    reward: Finite
    """Reward of the rollout."""
    loss_mask: list[Annotated[int, Meta(ge=0, le=1)]] | None = None  # [R]; None: every response token is trained
    """1 for a trained response token; None: all are trained  # [R]"""
    rollout: Annotated[int, Meta(ge=0, lt=ROLLOUTS)] | None = None
    """Number within the group; None: the index among the group's rows."""
    finish: str = "stop"
    """`stop`, `length` or `prompt_truncated`."""
    temperature: Temperature | list[Temperature] = 1.0
    """Temperature of all response tokens, or of each  # [R]"""
    metrics: dict[str, float] = {}
    """Named parts of the reward."""
    steps: list[RecordedStep] = []
    """Steps of a rollout with several; empty for a single sequence."""

    @property
    def longest(self) -> int:
        """Returns the number of tokens of the longest sequence."""
        return max((step.tokens for step in self.steps), default=len(self.tokens))


def recorded_rollout(reader: DatasetRecord, max_model_len: int) -> RecordedRollout:
    """Converts a row to a recorded rollout; lists may also be JSON texts, as in database tables.

    Raises DataError with row and column for a missing cell, or for one in conflict with the model or with other lists.
    """
    fields = {name: _list_cell(reader, name) for name in RecordedRollout.__struct_fields__ if reader.has(name)}
    for name in _REQUIRED:
        if name not in fields:
            raise _row_error(reader, f"has no value under {name!r}, and is to be a recorded rollout")
    try:
        rollout = converted(fields, RecordedRollout)
    except msgspec.ValidationError as error:
        raise _row_error(reader, f"is no recorded rollout: {error}") from None
    if (contradiction := _first_mismatch(rollout)) is not None:
        raise _row_error(reader, f"is no recorded rollout: {contradiction}")
    if rollout.longest > max_model_len:
        problem = f"has a sequence of {rollout.longest} tokens, and model.max_model_len is {max_model_len}"
        raise _row_error(reader, problem, f"raise model.max_model_len to {rollout.longest}, or leave the row out")
    return rollout


def _first_mismatch(rollout: RecordedRollout) -> str | None:
    """Returns the first contradiction between the lists of a rollout, in words; None without one."""
    total = len(rollout.tokens)
    prompt = rollout.prompt_tokens
    if rollout.steps and (
        (total, prompt)
        != (sum(step.tokens for step in rollout.steps), sum(step.prompt_tokens for step in rollout.steps))
        or any(step.prompt_tokens >= step.tokens for step in rollout.steps)
    ):
        return f"its steps are no parts of {total} tokens with {prompt} in prompts"
    if prompt >= total:
        return f"its prompt has {prompt} of {total} tokens, which leaves no response"
    response = total - prompt
    for name in ("logprobs", "loss_mask", "temperature"):
        numbers = getattr(rollout, name)
        if isinstance(numbers, list) and len(numbers) != response:
            return f"{name} has {len(numbers)} numbers for {response} response tokens"
    wrong = next((logprob for logprob in rollout.logprobs if not (-math.inf < logprob <= _ROUNDING)), None)
    return None if wrong is None else f"{wrong:g} is no log-probability"


def _list_cell(reader: DatasetRecord, name: str) -> Any:
    """Returns the cell of a column, decoded if a list is written as JSON text."""
    cell = reader.value(name)
    if name not in _LISTS or not isinstance(cell, str):
        return cell
    try:
        return msgspec.json.decode(cell)
    except UNREADABLE as error:
        raise reader.error(f"has a text under {name!r} that is no JSON: {error}", name) from None


def _row_error(reader: DatasetRecord, problem: str, fix: str = _FIX) -> DataError:
    """Builds the DataError for a row that is no recorded rollout."""
    error = reader.error(problem)
    error.fix = fix
    return error
