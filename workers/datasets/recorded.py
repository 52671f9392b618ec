"""`RecordedRollout`: a row of a dataset with the tokens, log-probabilities and reward of a rollout drawn earlier."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta

from rftd.ops.decoding import UNREADABLE, converted
from rftd.ops.errors import DataError
from rftd.streams.log.bounds import ROLLOUTS, Count, Finite, Temperature

if TYPE_CHECKING:
    from rftd.workers.datasets.record import DatasetRecord

RECORDED: Final = "experience"
"""The `schema_type` of rows with recorded rollouts."""
_LISTS: Final = ("tokens", "logprobs", "loss_mask", "steps", "metrics", "temperature")
_REQUIRED: Final = ("group", "tokens", "prompt_tokens", "logprobs", "reward")
_ROUNDING: Final = 1e-3
"""The highest log-probability of a token: that of a certain one, rounded."""
_FIX: Final = "write rows as rftd experiences rows --schema experience does"

_TokenId = Annotated[int, Meta(ge=0, lt=1 << 32)]


class RecordedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a recorded rollout with several, as its number of tokens, prompt and response together."""

    tokens: Annotated[int, Meta(ge=1)]
    prompt_tokens: Count
    reward: Finite
    step_reward: Finite | None = None
    state: str = ""


class RecordedRollout(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded rollout of T tokens, of which the first P are the prompt; R = T - P.

    With `steps`, T and P are sums over steps, and the lists hold one step after another.
    """

    group: str | int
    """The group of answers to one task, for advantages; rows of one group are neighbours."""
    tokens: Annotated[list[_TokenId], Meta(min_length=2)]  # [T]
    prompt_tokens: Count
    logprobs: Annotated[list[float], Meta(min_length=1)]  # [R], under the weights that drew each token
    reward: Finite
    loss_mask: list[Annotated[int, Meta(ge=0, le=1)]] | None = None  # [R]; None: every response token is trained
    rollout: Annotated[int, Meta(ge=0, lt=ROLLOUTS)] | None = None
    """The number within its group; None: the place among its rows."""
    finish: str = "stop"
    """`stop`, `length` or `prompt_truncated`."""
    temperature: Temperature | list[Temperature] = 1.0
    """The temperature of all response tokens, or of each  # [R]"""
    metrics: dict[str, float] = {}
    """The named parts of the reward."""
    steps: list[RecordedStep] = []

    @property
    def longest(self) -> int:
        """The tokens of its longest sequence."""
        return max((step.tokens for step in self.steps), default=len(self.tokens))


def recorded_rollout(reader: DatasetRecord, max_model_len: int) -> RecordedRollout:
    """Reads the row as a recorded rollout; a list may also be its JSON text, as a table of a database has it.

    Raises DataError with the row and the column of a value that is missing or fits neither model nor other lists.
    """
    fields = {name: _parsed(reader, name) for name in RecordedRollout.__struct_fields__ if reader.has(name)}
    for name in _REQUIRED:
        if name not in fields:
            raise _fault(reader, f"has no value under {name!r}, and is to be a recorded rollout")
    try:
        rollout = converted(fields, RecordedRollout)
    except msgspec.ValidationError as error:
        raise _fault(reader, f"is no recorded rollout: {error}") from None
    if (wrong := _mismatch(rollout)) is not None:
        raise _fault(reader, f"is no recorded rollout: {wrong}")
    if rollout.longest > max_model_len:
        what = f"has a sequence of {rollout.longest} tokens, and model.max_model_len is {max_model_len}"
        raise _fault(reader, what, f"raise model.max_model_len to {rollout.longest}, or leave the row out")
    return rollout


def _mismatch(rollout: RecordedRollout) -> str | None:
    """The first contradiction between the lists of a rollout, in words."""
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
        values = getattr(rollout, name)
        if isinstance(values, list) and len(values) != response:
            return f"{name} has {len(values)} numbers for {response} response tokens"
    wrong = next((value for value in rollout.logprobs if not (-math.inf < value <= _ROUNDING)), None)
    return None if wrong is None else f"{wrong:g} is no log-probability"


def _parsed(reader: DatasetRecord, name: str) -> Any:
    value = reader.value(name)
    if name not in _LISTS or not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except UNREADABLE as error:
        raise reader.error(f"has a text under {name!r} that is no JSON: {error}", name) from None


def _fault(reader: DatasetRecord, what: str, fix: str = _FIX) -> DataError:
    error = reader.error(what)
    error.fix = fix
    return error
