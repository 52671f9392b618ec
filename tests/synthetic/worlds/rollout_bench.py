"""A bench for rollouts: an engine whose requests meet their fates, and the three ways to ask for rollouts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import msgspec
import numpy as np
from synthetic.worlds.desk import lease_of

from rftd.ops.clock import SystemClock
from rftd.ops.errors import DataError, RftdError, RolloutError
from rftd.ops.ids import derive
from rftd.ops.logs import logger
from rftd.storage.files.artifacts import ArtifactStore
from rftd.streams.events.experience import ExperienceProduced, RolloutFailed, Span
from rftd.streams.events.task import EvalLeased
from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import ModelSpec, RolloutSpec, StageSpec, TasksetSpec
from rftd.workers.datasets.byte_tokenizer import ByteTokenizer
from rftd.workers.datasets.task import Task, make_task
from rftd.workers.generation.engine import Answers, EngineStats, Generation, GenerationRequest
from rftd.workers.rollout.eval_engine import OwnEngine
from rftd.workers.rollout.evaluator import Evaluator
from rftd.workers.rollout.leased import LeasedRollouts, rollout_ids
from rftd.workers.rollout.rollouts import RolloutPlaces, Rollouts
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.workflows.orphans import Orphans
from rftd.workers.workflows.runner import WorkflowRunner

SIZE, PLACES, RETRIES, SHORT_S = 4, 3, 2, 0.05
EVAL = UUID(int=9)
LEASE = lease_of(UUID(int=3), sequence=7, row=4, rollouts=tuple(range(SIZE)), repeat_times=SIZE)
MODEL = ModelSpec(path="m", max_model_len=64, max_prompt_tokens=48, max_response_tokens=8)
SPEC = TasksetSpec(
    name="t",
    path="p",
    workflow="simple_workflow",
    reward="exact_match_reward",
    format=Format(prompt_type="raw"),
)
WEIGHTS = WeightsRef(version=2, generation=0, path="w", manifest="m", checksum="c")


class Fated:
    """Answers with digits that follow from the seed; a request meets its fates in turn, then answers."""

    def __init__(self, *fates: str, of: dict[UUID, Sequence[str]] | None = None) -> None:
        self.version = (-1, -1)
        self.asked: list[GenerationRequest] = []
        self.under_way = 0
        self._every, self._of = fates, of or {}
        self._met: dict[UUID, int] = {}

    def fate(self, request: GenerationRequest) -> str:
        self.asked.append(request)
        met = self._met.get(request.id, 0)
        self._met[request.id] = met + 1
        fates = self._of.get(request.id, self._every)
        return fates[met] if met < len(fates) else "answer"

    def answer(self, fate: str, request: GenerationRequest) -> Generation:
        if fate == "error":
            raise RolloutError("no room")
        if fate == "breaks":
            raise OSError("the engine broke")
        tokens = tuple(str(np.random.default_rng(request.sampling.seed).integers(10, 99)).encode())
        logprobs = (-1.0,) if fate == "malformed" else (-1.0, -0.5)
        return Generation(tokens=tokens, logprobs=logprobs, spans=(Span(0, 0, 0, 2),), finish="length")

    async def generate(self, request: GenerationRequest) -> Generation:
        self.under_way += 1
        try:
            fate = self.fate(request)
            if fate == "hang":
                await asyncio.Event().wait()
            return self.answer(fate, request)
        finally:
            self.under_way -= 1

    async def load_weights(self, weights: WeightsRef) -> str:
        self.version = (weights.version, weights.generation)
        return weights.checksum

    def stats(self) -> EngineStats:
        return EngineStats(tokens_total=0, requests_total=0, running=0, waiting=0)

    async def close(self) -> None:
        return None


class FatedGroup(Fated):
    """The same, and takes several requests at once; it answers one at a time, the last first."""

    @asynccontextmanager
    async def generate_each(self, requests: Sequence[GenerationRequest]) -> AsyncIterator[Answers]:
        self.under_way += 1
        try:
            yield _Given(self, list(enumerate(requests)))
        finally:
            self.under_way -= 1


class _Given:
    def __init__(self, engine: Fated, left: list[tuple[int, GenerationRequest]]) -> None:
        self._engine = engine
        self._left = [(number, request, engine.fate(request)) for number, request in left]

    async def some(self) -> list[tuple[int, Generation | RolloutError]]:
        for at in reversed(range(len(self._left))):
            number, request, fate = self._left[at]
            if fate == "hang":
                continue
            del self._left[at]
            if fate == "unanswered":
                continue
            try:
                return [(number, self._engine.answer(fate, request))]
            except RolloutError as error:
                return [(number, error)]
        if self._left:
            await asyncio.Event().wait()
        return []


class Rows:
    """Every row is the same sum; those of `damaged` are none."""

    digest = "d"

    def __init__(self, spec: TasksetSpec = SPEC, damaged: Sequence[int] = ()) -> None:
        self.spec, self.damaged = spec, damaged

    def __len__(self) -> int:
        return SIZE

    def task(self, row: int, epoch: int = 0) -> Task:
        if row in self.damaged:
            raise DataError("no column prompt", where=f"row {row}")
        return make_task({"prompt": "6*7=", "response": "42"}, spec=self.spec, row=row, epoch=epoch)


class Warnings:
    """Keeps the warnings that are logged."""

    def __init__(self) -> None:
        self.said: dict[str, dict[str, Any]] = {}

    def warning(self, event: str, **fields: Any) -> None:
        self.said[event] = fields


class Played(msgspec.Struct):
    """What was seen from outside: of each rollout whether it answered, and the first error's words."""

    answered: dict[int, bool]
    error: str
    codes: set[str]


class Bench:
    """One set of parts, with which rollouts are made in any of the three ways."""

    def __init__(
        self,
        folder: Path,
        engine: Fated,
        *,
        spec: TasksetSpec = SPEC,
        model: ModelSpec = MODEL,
        grace_s: float = 30.0,
        **rollout: Any,
    ) -> None:
        self.engine = engine
        self.spec = spec
        self.model = model
        self.rollout = RolloutSpec(**{"max_retry_times": RETRIES, "max_timeout_s": 600.0} | rollout)
        self.places = RolloutPlaces(PLACES)
        self.retried: list[RftdError] = []
        """The errors of attempts at leased rollouts that were followed by another."""
        self.orphans = Orphans(logger(), grace_s=grace_s)
        self.warnings = Warnings()
        self.artifacts = ArtifactStore(folder)
        self.eval_places = RolloutPlaces(PLACES)
        self.evaluator = Evaluator(
            OwnEngine(self._opened, nullcontext),
            ByteTokenizer(),
            places=lambda _: self.eval_places,
            clock=SystemClock(),
            orphans=self.orphans,
            log=cast(Any, self.warnings),
            artifacts=self.artifacts,
        )
        self.events: list[ExperienceProduced | RolloutFailed] = []

    async def _opened(self) -> Any:
        return self.engine

    def leased(self, **options: Any) -> LeasedRollouts:
        runner = WorkflowRunner(self.spec, model=self.model, engine=cast(Any, self.engine), tokenizer=ByteTokenizer())
        same = {"places": self.places, "clock": SystemClock(), "orphans": self.orphans}
        rollouts = Rollouts(runner, self.rollout, on_retry=self.retried.append, **same)
        return LeasedRollouts(rollouts, artifacts=self.artifacts, seed=1, **options)

    async def group(self, rows: Rows, rollouts: Sequence[int] = LEASE.rollouts, **changes: Any) -> Played:
        lease = msgspec.structs.replace(LEASE, rollouts=tuple(rollouts), **changes)
        made: list[ExperienceProduced | RolloutFailed] = []

        async def take(events: Sequence[ExperienceProduced | RolloutFailed]) -> None:
            made.extend(events)

        await self.leased().run(lease, cast(Any, rows), take, row=lease.row)
        self.events += made
        failed = [event for event in made if isinstance(event, RolloutFailed)]
        assert len(made) == len({event.rollout for event in made}) == len(rollouts)
        return Played(
            {event.rollout: isinstance(event, ExperienceProduced) for event in made},
            failed[0].reason.partition(";")[0] if failed else "",
            {event.code for event in failed},
        )

    async def one(self, rows: Rows) -> Played:
        """A lease for each rollout, all at once."""
        played = await asyncio.gather(*(self.group(rows, [number]) for number in LEASE.rollouts))
        errors = [each.error for each in played if each.error]
        return Played(
            {number: answered for each in played for number, answered in each.answered.items()},
            errors[0] if errors else "",
            {code for each in played for code in each.codes},
        )

    async def evaluation(self, rows: Rows) -> Played:
        scored = await self.evaluator.score(eval_lease(), self.stage(), cast(Any, rows), WEIGHTS)
        tokens = scored.tokens.view().tolist()
        said = self.warnings.said.get("eval.rows_failed", {})
        assert scored.metrics == {"failed_rows": float(said.get("rows", 0))}
        assert tokens.count(0) == said.get("rows", 0)
        return Played(
            {row: bool(count) for row, count in enumerate(tokens)},
            said.get("first", ""),
            {said["code"]} if said else set(),
        )

    def stage(self) -> StageSpec:
        """A stage with as much as an evaluation reads."""
        return cast(StageSpec, SimpleNamespace(model=self.model, evals=(self.spec,), rollout=self.rollout, sources={}))

    def ids(self, way: str) -> list[UUID]:
        """The ids of the rollouts' first requests."""
        made = [derive(EVAL, "row", row) for row in range(SIZE)] if way == "evaluation" else None
        return [derive(id, "request", 0) for id in made or rollout_ids(LEASE.group, LEASE.rollouts)]

    def at_rest(self) -> bool:
        """True if every place is free, and the engine has nothing under way."""
        return self.places.free == self.eval_places.free == PLACES and self.engine.under_way == 0


def eval_lease(rows: int = SIZE) -> EvalLeased:
    return EvalLeased(
        lease=UUID(int=8),
        slot=0,
        worker=UUID(int=2),
        eval=EVAL,
        stage=0,
        taskset=0,
        row_start=0,
        row_end=rows,
        version=2,
        generation=0,
        attempt=1,
        deadline_s=50.0,
    )


WAYS = ("one", "group", "evaluation")
KINDS: dict[str, tuple[type[Fated], bool]] = {
    "together": (FatedGroup, False),
    "one by one": (Fated, False),
    "threads": (Fated, True),
}


async def play(
    folder: Path, way: str, kind: str, *fates: str, rows: Rows | None = None, **options: Any
) -> tuple[Played, Bench]:
    made, threads = KINDS[kind]
    engine = made(*fates)
    bench = Bench(folder, engine, threads_each=threads, **options)
    async with asyncio.timeout(60):
        played = await getattr(bench, way)(rows or Rows(bench.spec))
    assert bench.at_rest()
    assert set(played.answered) == set(range(SIZE))
    return played, bench


def number_of(event: ExperienceProduced | RolloutFailed) -> int:
    return event.rollout


def undated(event: ExperienceProduced | RolloutFailed) -> ExperienceProduced:
    assert isinstance(event, ExperienceProduced), event
    return msgspec.structs.replace(event, duration_s=0.0)
