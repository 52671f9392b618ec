"""One path: a rollout of one, a group and an evaluation's rows meet the same fault with the same outcome."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic.daemon.third_party import install
from synthetic.worlds.desk import lease_of

from rftd.ops.clock import SystemClock
from rftd.ops.errors import DataError, DiskFullError, RolloutError, RolloutTimeoutError
from rftd.ops.ids import derive
from rftd.ops.logs import logger
from rftd.storage.artifacts import ArtifactStore
from rftd.streams.events.experience import EvalScored, ExperienceProduced, RolloutFailed, Span
from rftd.streams.events.task import EvalLeased
from rftd.streams.spec import FormatSpec, ModelSpec, RolloutSpec, SamplingSpec, StageSpec, TasksetSpec
from rftd.workers.rollout.engine import Answers, EngineStats, Generation, GenerationRequest
from rftd.workers.rollout.evaluator import Evaluator
from rftd.workers.rollout.leased import LeasedRollouts, rollout_ids
from rftd.workers.rollout.orphans import OrphanedError, Orphans
from rftd.workers.rollout.rollouts import Rollouts
from rftd.workers.rollout.workflows.runner import WorkflowRunner
from rftd.workers.tasksets.byte_tokenizer import ByteTokenizer
from rftd.workers.tasksets.task import Task, make_task
from rftd.workers.weights.channel import WeightsRef

pytestmark = pytest.mark.anyio
SIZE, PLACES, RETRIES, SHORT_S = 4, 3, 2, 0.05
EVAL = UUID(int=9)
LEASE = lease_of(UUID(int=3), sequence=7, row=4, rollouts=tuple(range(SIZE)), repeat_times=SIZE)
MODEL = ModelSpec(path="m", max_model_len=64, max_prompt_tokens=48, max_response_tokens=8)
SPEC = TasksetSpec(
    name="t",
    path="p",
    workflow="simple_workflow",
    reward="exact_match_reward",
    format=FormatSpec(prompt_type="plaintext"),
)
WEIGHTS = WeightsRef(version=2, generation=0, path="w", manifest="m", checksum="c")
DEAF = """
import asyncio
from rftd.workers.rollout.workflows.simple import SimpleWorkflow
released = []
class Deaf(SimpleWorkflow):
    async def run(self, task, model, reward):
        while not released:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                pass
"""


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
        self, folder: Path, engine: Fated, *, spec: TasksetSpec = SPEC, grace_s: float = 30.0, **rollout: Any
    ) -> None:
        self.engine = engine
        self.spec = spec
        self.rollout = RolloutSpec(**{"max_retry_times": RETRIES, "max_timeout_s": 600.0} | rollout)
        self.places = asyncio.Semaphore(PLACES)
        self.orphans = Orphans(logger(), grace_s=grace_s)
        self.warnings = Warnings()
        self.artifacts = ArtifactStore(folder)
        self.evaluator = Evaluator(
            self._opened,
            ByteTokenizer(),
            at_once=PLACES,
            clock=SystemClock(),
            orphans=self.orphans,
            log=cast(Any, self.warnings),
        )
        self.events: list[ExperienceProduced | RolloutFailed] = []

    async def _opened(self) -> Any:
        return self.engine

    def leased(self, **options: Any) -> LeasedRollouts:
        runner = WorkflowRunner(self.spec, model=MODEL, engine=cast(Any, self.engine), tokenizer=ByteTokenizer())
        rollouts = Rollouts(runner, self.rollout, places=self.places, clock=SystemClock(), orphans=self.orphans)
        return LeasedRollouts(rollouts, artifacts=self.artifacts, seed=1, **options)

    async def group(self, rows: Rows, rollouts: Sequence[int] = LEASE.rollouts, **changes: Any) -> Played:
        lease = msgspec.structs.replace(LEASE, rollouts=tuple(rollouts), **changes)
        made: list[ExperienceProduced | RolloutFailed] = []

        async def take(events: Sequence[ExperienceProduced | RolloutFailed]) -> None:
            made.extend(events)

        await self.leased().run(lease, cast(Any, rows), take)
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
        """As much of a stage as an evaluation reads."""
        return cast(StageSpec, SimpleNamespace(model=MODEL, evals=(self.spec,), rollout=self.rollout))

    def ids(self, way: str) -> list[UUID]:
        """The ids of the rollouts' first requests."""
        made = [derive(EVAL, "row", row) for row in range(SIZE)] if way == "evaluation" else None
        return [derive(id, "request", 0) for id in made or rollout_ids(LEASE.group, LEASE.rollouts)]

    def at_rest(self) -> bool:
        """True if every place is free, and the engine has nothing under way."""
        return self.places._value == self.evaluator._places._value == PLACES and self.engine.under_way == 0


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
every_way = pytest.mark.parametrize("way", WAYS)
every_kind = pytest.mark.parametrize("kind", KINDS)


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


@every_kind
@every_way
@pytest.mark.parametrize(
    ("fate", "code", "words"),
    [
        ("error", RolloutError.code, "no room"),
        ("breaks", RolloutError.code, "OSError: the engine broke"),
        ("malformed", RolloutError.code, "2 tokens and 1 log-probabilities"),
        ("hang", RolloutTimeoutError.code, f"no result within {SHORT_S:g} s"),
    ],
)
async def test_a_fault_ends_each_rollout_after_its_attempts(
    tmp_path: Path, way: str, kind: str, fate: str, code: str, words: str
) -> None:
    timeout_s = SHORT_S if fate == "hang" else 600.0
    always = [fate] * (RETRIES + 1)
    played, bench = await play(tmp_path, way, kind, *always, max_timeout_s=timeout_s)
    assert not any(played.answered.values())
    assert words in played.error
    assert played.codes == {code}
    assert len(bench.engine.asked) == SIZE * (RETRIES + 1)


@every_kind
@every_way
@pytest.mark.parametrize("fate", ["error", "breaks", "malformed", "hang"])
async def test_a_passing_fault_leaves_the_result_that_none_would(
    tmp_path: Path, way: str, kind: str, fate: str
) -> None:
    """The next attempt asks with the same ids and seeds."""
    played, bench = await play(tmp_path, way, kind, fate, max_timeout_s=SHORT_S if fate == "hang" else 600.0)
    _, calm = await play(tmp_path, way, kind)
    assert all(played.answered.values())
    assert not played.error
    assert {request.id: request for request in bench.engine.asked} == {r.id: r for r in calm.engine.asked}
    assert [undated(event) for event in sorted(bench.events, key=number_of)] == [
        undated(event) for event in sorted(calm.events, key=number_of)
    ]


@every_kind
@every_way
async def test_a_row_that_is_no_task_is_not_asked_and_not_tried_again(tmp_path: Path, way: str, kind: str) -> None:
    rows = Rows(damaged=range(10))
    played, bench = await play(tmp_path, way, kind, rows=rows)
    assert not any(played.answered.values())
    assert not bench.engine.asked
    assert "no column prompt" in played.error
    assert played.codes == {DataError.code}


async def test_a_damaged_row_of_an_evaluation_leaves_the_others_alone(tmp_path: Path) -> None:
    played, _ = await play(tmp_path, "evaluation", "together", rows=Rows(damaged=[1]))
    assert played.answered == {0: True, 1: False, 2: True, 3: True}


@every_way
async def test_a_workflow_that_goes_on_is_not_tried_again(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "deaf_plugin", DEAF, {"rftd.workflows": {"deaf_one": "deaf_plugin:Deaf"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    import deaf_plugin  # type: ignore[import-not-found]

    spec = msgspec.structs.replace(SPEC, workflow="deaf_one")
    try:
        played, bench = await play(tmp_path, way, "one by one", spec=spec, grace_s=0.01, max_timeout_s=SHORT_S)
    finally:
        deaf_plugin.released.append(True)
        del sys.modules["deaf_plugin"]
    assert not any(played.answered.values())
    assert played.codes == {OrphanedError.code}
    assert "goes on 0.01 s after it was cancelled" in played.error
    assert bench.orphans.count == SIZE


@every_kind
@every_way
async def test_cancelled_it_frees_places_and_engine(tmp_path: Path, way: str, kind: str) -> None:
    """At each of its first steps: also one that was given a place and has not begun."""
    made, threads = KINDS[kind]
    for steps in range(14):
        bench = Bench(tmp_path, made("hang", "hang"), threads_each=threads)
        task = asyncio.ensure_future(getattr(bench, way)(Rows()))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(bench.at_rest)  # a thread's request ends one turn of the loop after the thread was told
        assert not bench.events
        assert bench.orphans.count == 0


@every_kind
async def test_nothing_to_do_is_done_at_once(tmp_path: Path, kind: str) -> None:
    made, threads = KINDS[kind]
    bench = Bench(tmp_path, made(), threads_each=threads)
    assert await bench.group(Rows(), []) == Played({}, "", set())
    scored = await bench.evaluator.score(eval_lease(0), bench.stage(), cast(Any, Rows()), WEIGHTS)
    assert isinstance(scored, EvalScored)
    assert not len(scored.rewards)
    assert bench.at_rest()
    assert not bench.engine.asked


FATES = st.lists(st.sampled_from(["answer", "error", "malformed"]), max_size=4)


@every_kind
@settings(max_examples=15, deadline=None)
@given(fates=st.lists(FATES, min_size=SIZE, max_size=SIZE))
async def test_any_mixture_of_faults_ends_alike_in_every_way(
    tmp_path_factory: pytest.TempPathFactory, kind: str, fates: list[list[str]]
) -> None:
    made, threads = KINDS[kind]
    first_answer = [[*each, "answer"].index("answer") for each in fates]
    for way in WAYS:
        bench = Bench(tmp_path_factory.mktemp("played"), made(), threads_each=threads)
        bench.engine._of = dict(zip(bench.ids(way), fates, strict=True))
        played: Played = await getattr(bench, way)(Rows())
        assert played.answered == {number: at <= RETRIES for number, at in enumerate(first_answer)}, way
        assert len(bench.engine.asked) == sum(min(at, RETRIES) + 1 for at in first_answer), way
        assert bench.at_rest()


async def test_what_failed_is_tried_again_while_the_others_run(tmp_path: Path) -> None:
    """A failed rollout does not wait for the slowest of its group."""
    for made in (Fated, FatedGroup):
        engine = made()
        bench = Bench(tmp_path, engine, max_timeout_s=600.0)
        first, second, third, _ = bench.ids("group")
        engine._of = {first: ["hang"], second: ["error"], third: ["error"]}
        task = asyncio.ensure_future(bench.group(Rows(), [0, 1, 2]))
        await until(lambda engine=engine, bench=bench: len(engine.asked) == 5 and bench.places._value == PLACES - 1)
        task.cancel()


async def test_the_first_lease_gets_its_places_before_the_next(tmp_path: Path) -> None:
    engine = Fated()
    bench = Bench(tmp_path, engine)
    leased = bench.leased()
    ended: list[UUID] = []

    async def take(events: Sequence[ExperienceProduced | RolloutFailed]) -> None:
        ended.extend(event.group for event in events)

    leases = [msgspec.structs.replace(LEASE, group=UUID(int=number), rollouts=tuple(range(6))) for number in (1, 2)]
    await asyncio.gather(*(leased.run(lease, cast(Any, Rows()), take) for lease in leases))
    assert ended == [UUID(int=1)] * 6 + [UUID(int=2)] * 6


@pytest.mark.parametrize("made", [Fated, FatedGroup])
async def test_no_time_out_runs_while_the_outbox_is_full(tmp_path: Path, made: Callable[[], Fated]) -> None:
    """Who hands over waits longer than an attempt may take; what ended meanwhile counts."""
    bench = Bench(tmp_path, made(), max_timeout_s=SHORT_S, max_retry_times=0)
    found: list[ExperienceProduced | RolloutFailed] = []
    loop = asyncio.get_running_loop()

    async def take(events: Sequence[ExperienceProduced | RolloutFailed]) -> None:
        wait: asyncio.Future[None] = loop.create_future()
        loop.call_later(2 * SHORT_S, wait.set_result, None)
        await wait
        found.extend(events)

    await bench.leased().run(msgspec.structs.replace(LEASE, rollouts=(0, 1, 2)), cast(Any, Rows()), take)
    assert len(found) == 3
    assert all(isinstance(event, ExperienceProduced) for event in found)


async def test_a_lease_s_own_time_out_holds_where_it_has_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FatedGroup("hang", "hang", "hang"))
    played = await bench.group(Rows(), timeout_s=SHORT_S)
    assert f"{SHORT_S:g} s" in played.error
    assert played.codes == {RolloutTimeoutError.code}


async def test_together_leaves_what_each_would_leave_alone(tmp_path: Path) -> None:
    found = []
    for kind, way in (("together", "group"), ("together", "one"), ("one by one", "group"), ("threads", "one")):
        _, bench = await play(tmp_path, way, kind)
        found.append(sorted(map(undated, bench.events), key=number_of))
        assert len({request.sampling.seed for request in bench.engine.asked}) == SIZE
    assert found[0] == found[1] == found[2] == found[3]


async def test_greedy_rollouts_go_with_their_group(tmp_path: Path) -> None:
    for made in (Fated, FatedGroup):
        bench = Bench(tmp_path, made())
        await bench.leased(greedy_rollouts=1).run(LEASE, cast(Any, Rows()), _nowhere)
        temperatures = {request.id: request.sampling.temperature for request in bench.engine.asked}
        assert [temperatures[id] for id in bench.ids("group")] == [0.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("trained", [True, False])
async def test_what_cannot_be_trained_fails_where_it_is_trained(tmp_path: Path, trained: bool) -> None:
    spec = msgspec.structs.replace(SPEC, sampling=SamplingSpec(temperature=0.001))
    for made in (Fated, FatedGroup):
        bench = Bench(tmp_path, made(), spec=spec)
        found: list[ExperienceProduced | RolloutFailed] = []

        async def take(events: Sequence[Any], found: list[Any] = found) -> None:
            found.extend(events)

        await bench.leased(trained=trained).run(LEASE, cast(Any, Rows(spec)), take)
        assert {isinstance(event, RolloutFailed) for event in found} == {trained}
        assert len(bench.engine.asked) == SIZE * (RETRIES + 1 if trained else 1)
        # Nothing trains on an evaluation, whatever its settings.
        assert all((await bench.evaluation(Rows(spec))).answered.values())


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("made", [Fated, FatedGroup])
async def test_a_prompt_that_does_not_fit_is_not_asked(
    tmp_path: Path, cut: bool, made: Callable[[], Fated], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = msgspec.structs.replace(MODEL, max_prompt_tokens=2, enable_prompt_truncation=cut)
    monkeypatch.setitem(globals(), "MODEL", model)
    bench = Bench(tmp_path, made())
    played = await bench.group(Rows())
    assert not bench.engine.asked
    assert set(played.answered.values()) == {cut}
    assert ("the limit is 2" in played.error) is not cut


@pytest.mark.parametrize("error", [RolloutError("gone"), DiskFullError("gone"), DataError("gone")])
async def test_weights_that_cannot_be_loaded_end_the_lease_and_not_the_explorer(
    tmp_path: Path, error: Exception
) -> None:
    """A RolloutError is what the explorer lets a lease expire for; the next one finds the weights."""
    bench = Bench(tmp_path, FatedGroup())
    load = bench.engine.load_weights

    async def gone(weights: WeightsRef) -> str:
        raise error

    bench.engine.load_weights = gone  # type: ignore[method-assign]
    with pytest.raises(RolloutError, match="gone"):
        await bench.evaluation(Rows())
    assert bench.at_rest()
    assert not bench.engine.asked
    assert not bench.evaluator.running
    bench.engine.load_weights = load  # type: ignore[method-assign]
    assert all((await bench.evaluation(Rows())).answered.values())


async def until(seen: Callable[[], bool]) -> None:
    """Turns the event loop until something is seen, which nobody tells of."""
    async with asyncio.timeout(30):
        while not seen():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def _nowhere(events: Sequence[object]) -> None:
    return None


def number_of(event: ExperienceProduced | RolloutFailed) -> int:
    return event.rollout


def undated(event: ExperienceProduced | RolloutFailed) -> ExperienceProduced:
    assert isinstance(event, ExperienceProduced), event
    return msgspec.structs.replace(event, duration_s=0.0)
