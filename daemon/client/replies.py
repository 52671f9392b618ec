"""The parts of the API's answers that the command line reads; a newer daemon may send more."""

from __future__ import annotations

from typing import Any

import msgspec


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every reply."""


class Summary(Reply, frozen=True, kw_only=True):
    """One line of a list."""

    id: str
    name: str
    project: str
    state: str
    reason: str | None
    code: str | None
    kept: str = "here"
    kept_path: str | None = None
    stage: str | None
    step: int
    total_steps: int
    generation: int | None
    reward_mean: float | None
    staleness_p95: int | None
    submitted_at: str
    started_at: str | None
    state_at: str
    priority: int = 0
    queue_position: int | None = None
    """1 for the next of those that wait for their turn."""
    parent: str | None = None
    """The experiment whose history it shares, up to `forked_step`."""
    forked_step: int | None = None


class Summaries(Reply, frozen=True, kw_only=True):
    """A list of experiments."""

    items: list[Summary]
    next: int | None


class Stage(Reply, frozen=True, kw_only=True):
    """One stage."""

    name: str
    kind: str
    algorithm: str
    total_steps: int
    first_version: int | None
    started_at: str | None
    completed_at: str | None
    shared_steps: int = 0


class Books(Reply, frozen=True, kw_only=True):
    """Where the experiences are."""

    produced: int
    waiting: int
    cooling: int
    planned: int
    retired: dict[str, int]
    retired_used: dict[str, int] = {}
    balance: int
    open: int
    late: int
    failed_rollouts: int
    given_up: dict[str, int] = {}


class Detail(Reply, frozen=True, kw_only=True):
    """One experiment."""

    summary: Summary
    job_dir: str
    stages: list[Stage]
    warnings: list[str]
    books: Books
    groups_closed: int
    generations: int
    parent_name: str | None = None


class Point(Reply, frozen=True, kw_only=True):
    """One point of the reward curve."""

    step: int
    reward_mean: float
    inherited: bool = False
    """True if an experiment that this is a fork of made it."""


class Eval(Reply, frozen=True, kw_only=True):
    """One evaluation."""

    taskset: str
    version: int
    rows: int
    score: float | None
    completed_at: str


class Weight(Reply, frozen=True, kw_only=True):
    """One weight version."""

    version: int
    generation: int
    counts: bool
    holders: int
    size_bytes: int
    published_at: str


class Overdue(Reply, frozen=True, kw_only=True):
    """A window for which explorers waited longer than `sync_timeout`."""

    stage: int
    window: int
    wanted: int
    version: int
    """The one that it ran on instead; -1: it went on waiting."""
    waited_s: float
    reason: str
    overdue_at: str


class Checkpoint(Reply, frozen=True, kw_only=True):
    """One checkpoint."""

    step: int
    path: str
    size_bytes: int
    final: bool
    counts: bool
    committed_at: str


class Worker(Reply, frozen=True, kw_only=True):
    """One worker."""

    role: str
    slot: int
    pid: int
    host: str
    state: str
    code: str | None
    reason: str | None
    version: int | None
    started_at: str


class Page(Reply, frozen=True, kw_only=True):
    """Everything about one experiment."""

    experiment: Detail
    reward_curve: list[Point]
    evals: list[Eval]
    weights: list[Weight]
    overdue: list[Overdue] = []
    overdue_windows: int = 0
    checkpoints: list[Checkpoint]
    workers: list[Worker]
    waiting: str | None = None


class Submitted(Reply, frozen=True, kw_only=True):
    """A submission that is in the log."""

    id: str
    name: str
    event: str
    position: str
    warnings: list[str]


class Forked(Submitted, frozen=True, kw_only=True):
    """A fork that is in the log."""

    parent: str
    at_step: int


class Commanded(Reply, frozen=True, kw_only=True):
    """A command that is in the log."""

    id: str
    event: str
    position: str


class Event(Reply, frozen=True, kw_only=True):
    """One event."""

    id: str
    type: str
    time: str
    position: str
    source: str
    payload: dict[str, Any]


class Events(Reply, frozen=True, kw_only=True):
    """A page of events."""

    items: list[Event]
    next: str
    more: bool


class Line(Reply, frozen=True, kw_only=True):
    """One line of a log file."""

    role: str
    slot: int | None
    time: str
    level: str
    event: str
    fields: dict[str, Any]


class Lines(Reply, frozen=True, kw_only=True):
    """A page of log lines."""

    items: list[Line]
    next: dict[str, int]


class Experience(Reply, frozen=True, kw_only=True):
    """One experience."""

    id: str
    group: str
    rollout: int
    state: str
    retired_reason: str | None
    reward: float | None
    prompt_tokens: int
    response_tokens: int
    oldest_version: int
    newest_version: int
    step: int | None
    staleness_versions: int | None
    uses: int
    finish: str
    produced_at: str


class Experiences(Reply, frozen=True, kw_only=True):
    """A list of experiences."""

    items: list[Experience]
    next: int | None


class Span(Reply, frozen=True, kw_only=True):
    """Response tokens of one weight version."""

    version: int
    generation: int
    start: int
    end: int


class ExperiencePage(Reply, frozen=True, kw_only=True):
    """One experience with what the log holds."""

    experience: Experience
    spans: list[Span]
    tokens: list[int] | None
    loss_mask: list[int] | None
    logprobs: list[float] | None


class Node(Reply, frozen=True, kw_only=True):
    """One thing of a lineage."""

    id: str
    kind: str
    text: str


class Link(Reply, frozen=True, kw_only=True):
    """`cause` is part of what `effect` was made of."""

    cause: str
    effect: str
    what: str


class More(Reply, frozen=True, kw_only=True):
    """What is not shown beside a thing."""

    node: str
    direction: str
    kind: str
    count: int
    exact: bool


class Lineage(Reply, frozen=True, kw_only=True):
    """What a thing was made of, and what became of it."""

    root: str
    nodes: list[Node]
    up: list[Link]
    down: list[Link]
    more: list[More]
    cut: list[str]
    bound: int | None = None


class Wait(Reply, frozen=True, kw_only=True):
    """What one role does or waits for."""

    role: str
    slot: int | None
    level: int
    """0 stuck, 1 waits, 2 works, 3 done."""
    state: str
    waiting_for: str
    on_whom: str
    unblock: str
    since_at: str | None


class Why(Reply, frozen=True, kw_only=True):
    """The waits of one experiment, worst first."""

    experiment: str
    name: str
    status: str
    live: bool
    waits: list[Wait]


class Version(Reply, frozen=True, kw_only=True):
    """What the daemon is."""

    version: str
    python: str


class DeadLetter(Reply, frozen=True, kw_only=True):
    """A record that no reader could use, or a task of which too few rollouts succeeded."""

    id: str
    kind: str
    state: str
    task: str | None
    group: str | None
    attempts: int
    code: str
    reason: str
    found_at: str | None
    by: str
    verdict: str
    decided_at: str | None


class DeadLetters(Reply, frozen=True, kw_only=True):
    """Dead letters, newest first."""

    items: list[DeadLetter]
    open: int
    next: int | None


class Try(Reply, frozen=True, kw_only=True):
    """One time that a task was given out."""

    attempt: int
    slot: int
    worker: str
    leased_at: str | None
    ended: str


class DeadLetterPage(Reply, frozen=True, kw_only=True):
    """One dead letter with what lies behind it."""

    letter: DeadLetter
    tries: list[Try]
    record: dict[str, Any] | None


class Decided(Reply, frozen=True, kw_only=True):
    """A dead letter was retried or dropped."""

    id: str
    state: str
    already: bool
    position: str | None
