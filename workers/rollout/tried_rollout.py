"""`TriedRollout`: one rollout with everything that happened in it; `FirstRows`: the rows that it may answer."""

from __future__ import annotations

import msgspec


class TriedCall(msgspec.Struct, frozen=True, kw_only=True):
    """One request to the model and its answer."""

    prompt: str
    """Prompt as the model saw it, with the marks of the chat template."""
    prompt_ids: list[int]
    answer: str
    answer_ids: list[int]
    logprobs: list[float]
    finish: str
    temperature: float
    max_tokens: int
    duration_s: float


class TriedPart(msgspec.Struct, frozen=True, kw_only=True):
    """A timed part of the rollout: a tool, an agent, a reward, or a call of another model."""

    name: str
    """Kind and name, as in traces: `execute_tool search`."""
    duration_s: float
    error: str = ""


class TriedAuxiliary(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of an auxiliary model."""

    model: str
    text: str
    tokens: int


class TriedRollout(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout with everything that happened in it."""

    taskset: str
    row: int
    workflow: str
    reward_name: str
    prompt: str
    truth: str
    calls: list[TriedCall]
    parts: list[TriedPart]
    auxiliary: list[TriedAuxiliary]
    reward: float | None
    """Reward of the rollout; None if it failed."""
    rewards: dict[str, float]
    """Parts of the reward and further metrics of the workflow."""
    extracted: str | None
    """The answer read by the reward, to be compared with the truth."""
    finish: str
    steps: int
    """Number of sequences to be trained: 1, or one for each step."""
    trained_tokens: int
    drawn_tokens: int
    duration_s: float
    opening_s: float
    """Seconds until the model was ready."""
    error: str = ""
    """Error that ended the rollout; empty if it finished."""
    fix: str = ""


class FirstRows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a taskset, and the first of these rows as the model will see it."""

    taskset: str
    path: str
    rows: int
    """Number of rows in the taskset."""
    row: int
    """Number of the first row shown, from 0."""
    items: list[str]
    """The rows as JSON, long ones cut."""
    prompt: str
    """The prompt of the first row with the marks of the chat template, cut if long."""
    prompt_tokens: int
    most_tokens: int
    """Maximum number of tokens of a prompt."""
    answer: str
    """The truth of the row; for rows to learn from, the learned text."""
