"""Experiences: a filtered list, one with its tokens, the lengths of all; prioritize and give up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Final, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from rftd.daemon.http.views.commands import Reason, Receipt, Text, receipt_of
from rftd.daemon.http.views.route import (
    After,
    Cursor,
    Daemon,
    Int,
    Limit,
    Name,
    Real,
    Time,
    Word,
    command,
    read,
    time_of,
)
from rftd.ops.errors import NotFoundError, UsageError
from rftd.storage.queries.experience_pages import ExperienceFilter, RowRange, list_experiences
from rftd.storage.queries.experiences import (
    ExperienceRow,
    TaskRow,
    find_experience,
    get_experience,
    task_of,
)
from rftd.storage.queries.lengths import Lengths, lengths_of

if TYPE_CHECKING:
    from rftd.streams.events.experience import AuxiliaryTurn, ExperienceProduced, Span
    from rftd.streams.log.log import EventLog

MOST_PRIORITY: Final = 1e15
"""Largest absolute priority of an experience."""

ExperienceId = Annotated[
    str,
    Meta(max_length=100, description="Its id, or 8 or more digits with which only this id of the experiment begins."),
]
"""Id of an experience in a request, or a beginning of the id with 8 or more digits."""
Order = Literal["oldest", "newest", "reward", "-reward", "staleness", "-staleness"]
"""Order of a list of experiences; a name with a minus sign sorts from the highest down."""
State = Literal["open", "late", "waiting", "cooling", "planned", "retired"]
"""State of an experience with effect."""


class ExperienceList(msgspec.Struct, frozen=True, kw_only=True):
    """Some experiences passing the filter, in the requested order."""

    items: list[ExperienceRow]
    """Experiences of the page, in order."""
    next: str | None
    """`cursor` of the next page; null at the end. A page with fewer experiences than `limit` may have a next one."""


class ExperienceView(msgspec.Struct, frozen=True, kw_only=True):
    """One experience; its lists are filled if tokens were requested."""

    experience: ExperienceRow
    """The experience without tokens."""
    spans: list[SpanView]
    """Runs of response tokens, each sampled by one weight version."""
    tokens: list[int] | None = None
    """Prompt and response ids."""
    loss_mask: list[int] | None = None
    """1 for each trained response token, else 0."""
    logprobs: list[float] | None = None
    """Log-probability of each response token under the weights that sampled it."""
    processed_logprobs: list[float] | None = None
    """Log-probability of each response token in the distribution sampled from; None unless requested."""
    sampling: list[SamplingView] = []
    """Sampling settings; empty if the workflow recorded none."""
    steps: list[StepView] = []
    """Sequences of a rollout consisting of several, in the order of the lists; else empty."""
    auxiliary: list[AuxiliaryTurnView] = []
    """Answers of auxiliary models."""
    task: TaskRow | None
    """The task answered by the experience."""


class AuxiliaryTurnView(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of an auxiliary model during the rollout, with its token counts."""

    model: str
    """Name of the auxiliary model."""
    asked: str
    """Digest of the question."""
    text: str
    """The answer, or its beginning."""
    chars: int
    """Length of the whole answer in characters."""
    prompt_tokens: int
    """Number of tokens of the prompt."""
    tokens: int
    """Number of tokens of the answer."""


class SpanView(msgspec.Struct, frozen=True, kw_only=True):
    """Response tokens [start, end) sampled from these weights, named by version and generation."""

    version: int
    """The weight version."""
    generation: int
    """Generation of the training history at the version."""
    start: int
    """Index of the first response token."""
    end: int
    """Index behind the last response token."""


class SamplingView(msgspec.Struct, frozen=True, kw_only=True):
    """Response tokens [start, end) sampled with these settings."""

    temperature: float
    """Temperature of sampling."""
    top_p: float
    """Smallest total probability of the tokens sampled from."""
    top_k: int
    """Number of most probable tokens sampled from."""
    others: dict[str, float] = {}
    """Further settings different from the defaults."""
    start: int
    """Index of the first response token."""
    end: int
    """Index behind the last response token."""


class StepView(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence of a rollout consisting of several."""

    tokens: int
    """Number of tokens of prompt and response together."""
    prompt_tokens: int
    """Length of the step's prompt, in tokens."""
    reward: float
    """Reward of the step."""
    step_reward: float | None = None
    """Reward of the step alone; null without one from the workflow."""
    state: str = ""
    """Equal for steps with the same state of their environment at the start; empty if unknown."""
    role: str = ""
    """The agent behind the sequence; empty in a rollout of a single agent."""


class Tag(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of an experience's prioritize: the new tag, and a reason kept with the event."""

    priority: Annotated[float, Meta(ge=-MOST_PRIORITY, le=MOST_PRIORITY)]
    """The new priority of the experience's group; the highest is trained first."""
    reason: Text = ""
    """Reason of the command in words, recorded with its event."""


@read("/v1/experiments/{name}/experiences", ExperienceList, tag="experiences")
async def experiences(
    daemon: Daemon,
    name: Name,
    first_step: Int = None,
    last_step: Int = None,
    min_reward: Real = None,
    max_reward: Real = None,
    min_staleness: Int = None,
    max_staleness: Int = None,
    stage: Int = None,
    state: State | None = None,
    group: Annotated[UUID | None, Meta(description="Only those of this group.")] = None,
    row: Int = None,
    taskset: Word = None,
    since: Time = None,
    until: Time = None,
    finish: Word = None,
    version: Int = None,
    part: Word = None,
    min_part: Real = None,
    max_part: Real = None,
    order: Order = "newest",
    limit: Limit = 50,
    cursor: Cursor = None,
    after: After = None,
) -> ExperienceList:
    """Experiences passing the filter; bounds are inclusive, staleness in versions. `row` is the row of the task,
    `taskset` the name of its taskset, `since` and `until` bound the time of production, `version` is a weight version
    that generated tokens; `min_part` and `max_part` bound the reward's part named by `part`.
    """
    where = ExperienceFilter(
        first_step=first_step,
        last_step=last_step,
        min_reward=min_reward,
        max_reward=max_reward,
        min_staleness_versions=min_staleness,
        max_staleness_versions=max_staleness,
        stage=stage,
        state=state,
        group=group,
        row=row,
        since_ns=time_of(since, "since"),
        until_ns=time_of(until, "until"),
        finish=finish,
        version=version,
        part=part,
        min_part=min_part,
        max_part=max_part,
    )
    id = await daemon.find(name, after)
    if taskset is not None:
        where = msgspec.structs.replace(where, tasksets=await _rows_of(daemon, id, taskset))
    async with daemon.read() as connection:
        page = await list_experiences(connection, id, where=where, order=order, limit=limit, cursor=cursor)
    return ExperienceList(items=page.items, next=page.next)


async def _rows_of(daemon: Daemon, experiment: UUID, taskset: str) -> tuple[RowRange, ...]:
    """Returns the rows of the tasksets with this name, in every stage. Raises UsageError for an unknown name."""
    from rftd.streams.spec.stage_tasks import row_ranges, tasksets_of

    origin = await daemon.operations.text_origin(experiment)
    stages = () if origin is None else origin.spec.stages
    ranges = [
        RowRange(number, rows.start, rows.stop - 1)
        for number, stage in enumerate(stages)
        for rows, explored_taskset in zip(row_ranges(stage), tasksets_of(stage), strict=True)
        if explored_taskset.name == taskset
    ]
    if not ranges:
        names = dict.fromkeys(explored_taskset.name for stage in stages for explored_taskset in tasksets_of(stage))
        fix = "use one of " + ", ".join(names) if names else "leave it out"
        raise UsageError(f"no taskset {taskset!r} is explored", field="taskset", fix=fix)
    return tuple(ranges)


@read("/v1/experiments/{name}/lengths", Lengths, tag="experiences")
async def lengths(daemon: Daemon, name: Name, stage: Int = None, after: After = None) -> Lengths:
    """Lengths of responses generated, trained and dropped, and whether the drops were biased."""
    id = await daemon.find(name, after)
    async with daemon.read() as connection:
        return await lengths_of(connection, id, stage=stage)


@read("/v1/experiments/{name}/experiences/{experience}", ExperienceView, tag="experiences")
async def experience(
    daemon: Daemon, name: Name, experience: ExperienceId, tokens: bool = False, after: After = None
) -> ExperienceView:
    """One experience; with `tokens` also its ids, mask and log-probabilities."""
    id = await daemon.find(name, after)
    async with daemon.read() as connection:
        row = await get_experience(connection, await find_experience(connection, id, experience))
        task = await task_of(connection, UUID(row.group))
    return _view(row, await _payload(daemon.log, row), task, tokens=tokens)


@command(
    "/v1/experiments/{name}/experiences/{experience}/prioritize",
    Tag,
    Receipt,
    tag="experiences",
    name="prioritize_experience",
)
async def prioritize(daemon: Daemon, body: Tag, key: UUID, name: Name, experience: ExperienceId) -> Receipt:
    """Change the priority of an experience and of its group: groups stay together in every order."""
    id = await daemon.find(name)
    async with daemon.read() as connection:
        experience_id = await find_experience(connection, id, experience)
        group = UUID((await get_experience(connection, experience_id)).group)
    done = await daemon.operations.tag(id, group, priority=body.priority, reason=body.reason, request_id=key)
    return receipt_of(id, done)


@command(
    "/v1/experiments/{name}/experiences/{experience}/give-up",
    Reason,
    Receipt,
    tag="experiences",
    optional=True,
    name="give_up_experience",
    summary="Give up",
)
async def give_up(daemon: Daemon, body: Reason, key: UUID, name: Name, experience: ExperienceId) -> Receipt:
    """Retire an experience with a permanently lost payload; a batch holding it is abandoned, and planned anew."""
    id = await daemon.find(name)
    async with daemon.read() as connection:
        experience_id = await find_experience(connection, id, experience)
        await get_experience(connection, experience_id)
    return receipt_of(id, await daemon.operations.give_up(id, experience_id, reason=body.reason, request_id=key))


async def _payload(log: EventLog, row: ExperienceRow) -> ExperienceProduced:
    """Returns the payload of an experience from the log. Raises NotFoundError if the log no longer has it."""
    from rftd.streams.events.experience import ExperienceProduced
    from rftd.streams.log import topics
    from rftd.streams.log.codec import decode_as
    from rftd.streams.log.topics import Partition

    records = await log.read(Partition(topics.EXPERIENCES, row.partition), row.offset, max_records=1)
    # A log without the dropped record answers with the next existing one.
    if not records or records[0].offset != row.offset:
        raise NotFoundError(f"the log holds no payload of experience {row.id}", where=f"{row.partition}@{row.offset}")
    return decode_as(records[0], ExperienceProduced)


def span_views(spans: Iterable[Span]) -> list[SpanView]:
    """Returns the spans of weight versions in the form of answers."""
    return [
        SpanView(version=span.version, generation=span.generation, start=span.start, end=span.end) for span in spans
    ]


def auxiliary_views(turns: Iterable[AuxiliaryTurn]) -> list[AuxiliaryTurnView]:
    """Returns the answers of auxiliary models in the form of answers of the API."""
    return [
        AuxiliaryTurnView(
            model=turn.model,
            asked=turn.asked,
            text=turn.text,
            chars=turn.chars,
            prompt_tokens=turn.prompt_tokens,
            tokens=turn.tokens,
        )
        for turn in turns
    ]


def _view(row: ExperienceRow, event: ExperienceProduced, task: TaskRow | None, *, tokens: bool) -> ExperienceView:
    """Returns an experience with its record's contents, with token ids, mask and log-probabilities on request."""
    view = ExperienceView(
        experience=row,
        task=task,
        spans=span_views(event.spans),
        sampling=[
            SamplingView(
                temperature=settings.temperature,
                top_p=settings.top_p,
                top_k=settings.top_k,
                others=dict(settings.others),
                start=settings.start,
                end=settings.end,
            )
            for settings in event.sampling
        ],
        steps=[
            StepView(
                tokens=step.tokens,
                prompt_tokens=step.prompt_tokens,
                reward=step.reward,
                step_reward=step.step_reward,
                state=step.state,
                role=step.role,
            )
            for step in event.steps
        ],
        auxiliary=auxiliary_views(event.auxiliary),
    )
    if not tokens:
        return view
    processed = event.processed_logprobs
    return msgspec.structs.replace(
        view,
        tokens=event.tokens.view().tolist(),
        loss_mask=event.loss_mask.view().tolist(),
        logprobs=event.logprobs.view().tolist(),
        processed_logprobs=None if processed is None else processed.view().tolist(),
    )
