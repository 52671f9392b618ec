"""One path: a rollout of one, a group and an evaluation's rows meet the same fault with the same outcome."""

from __future__ import annotations

import asyncio
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic.daemon.third_party import install
from synthetic.until import until
from synthetic.worlds.rollout_bench import (
    KINDS,
    PLACES,
    RETRIES,
    SHORT_S,
    SIZE,
    SPEC,
    WAYS,
    WEIGHTS,
    Bench,
    Fated,
    FatedGroup,
    Played,
    Rows,
    eval_lease,
    number_of,
    play,
    undated,
)

from rftd.ops.errors import DataError, DiskFullError, RolloutError, RolloutTimeoutError, WorkError
from rftd.streams.events.experience import EvalScored
from rftd.workers.generation.engine import GenerationRequest
from rftd.workers.rollout.eval_engine import OwnEngine, SharedEngine
from rftd.workers.rollout.version_gate import VersionGate
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.workflows.orphans import OrphanedError

pytestmark = pytest.mark.anyio
DEAF = """
import asyncio
from rftd.workers.workflows.simple import SimpleWorkflow
released = []
class Deaf(SimpleWorkflow):
    async def run(self, task, model, reward):
        while not released:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                pass
"""
THREAD_S = 1.0
"""The time of an attempt that has to start a thread and to answer, on a machine that is busy."""
every_way = pytest.mark.parametrize("way", WAYS)
every_kind = pytest.mark.parametrize("kind", KINDS)


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
    requests = len(bench.engine.asked)
    if (fate, kind) == ("hang", "threads"):  # a thread may begin when the time of its attempt is over
        assert 0 < requests <= SIZE * (RETRIES + 1)
    else:
        assert requests == SIZE * (RETRIES + 1)


@every_kind
@every_way
@pytest.mark.parametrize("fate", ["error", "breaks", "malformed", "hang"])
async def test_a_passing_fault_leaves_the_result_that_none_would(
    tmp_path: Path, way: str, kind: str, fate: str
) -> None:
    """The next attempt asks with the same ids and seeds."""
    short_s = THREAD_S if kind == "threads" else SHORT_S
    played, bench = await play(tmp_path, way, kind, fate, max_timeout_s=short_s if fate == "hang" else 600.0)
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
    assert "still runs 0.01 s after it was cancelled" in played.error
    await until(lambda: bench.orphans.count == 0)  # and when they end after all, nobody is told of it


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
        await until(lambda engine=engine, bench=bench: len(engine.asked) == 5 and bench.places.free == PLACES - 1)
        task.cancel()


async def test_requests_that_an_engine_leaves_unanswered_fail_alone_and_are_tried_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FatedGroup())
    first, second, third, _ = bench.ids("group")
    bench.engine._of = {first: ["unanswered"] * (RETRIES + 1), second: ["unanswered"] * (RETRIES + 1)}
    async with asyncio.timeout(60):
        played = await bench.group(Rows(), [0, 1, 2])
    assert played.answered == {0: False, 1: False, 2: True}
    assert "the rollout engine left 2 requests unanswered" in played.error
    bench.engine._of = {each: ["unanswered"] for each in (first, second, third)}
    bench.engine._met.clear()
    async with asyncio.timeout(60):
        assert all((await bench.group(Rows(), [0, 1, 2])).answered.values())
    assert bench.at_rest()
    assert len(bench.retried) == 2 * RETRIES + 3, "each attempt that another follows, and no last one"


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


class Mortal(FatedGroup):
    """Dies under its first request; a dead one raises at everything."""

    def __init__(self, *fates: str, lives: bool) -> None:
        super().__init__(*fates)
        self.lives = lives
        self.closed = False

    def fate(self, request: GenerationRequest) -> str:
        return super().fate(request) if self.lives else "error"

    async def load_weights(self, weights: WeightsRef) -> str:
        if not self.lives and self.version[0] >= 0:
            raise RolloutError("the engine is dead")
        return await super().load_weights(weights)

    async def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("dead", [1, 2])
async def test_an_evaluation_is_answered_by_a_new_engine_where_the_first_one_dies(tmp_path: Path, dead: int) -> None:
    """No row scores 0 for an engine's death; where the second one dies too, the lease is given up."""
    engines = [Mortal(lives=number >= dead) for number in range(3)]
    bench = Bench(tmp_path, engines[0])
    opened: list[Mortal] = []

    async def opens() -> Mortal:
        opened.append(engines[len(opened)])
        return opened[-1]

    bench.evaluator._engine = OwnEngine(cast(Any, opens), nullcontext)
    if dead == 2:
        with pytest.raises(RolloutError, match="2 engines failed"):
            await bench.evaluation(Rows())
    assert all((await bench.evaluation(Rows())).answered.values())
    assert not bench.warnings.said
    assert opened == engines[: dead + 1]
    assert [engine.closed for engine in opened] == [True] * dead + [False]
    await bench.evaluator.close()
    assert opened[-1].closed


async def test_one_that_died_between_two_evaluations_is_opened_anew(tmp_path: Path) -> None:
    engines = [Mortal(lives=True), Mortal(lives=True)]
    bench = Bench(tmp_path, engines[0])
    opened: list[Mortal] = []

    async def opens() -> Mortal:
        opened.append(engines[len(opened)])
        return opened[-1]

    bench.evaluator._engine = OwnEngine(cast(Any, opens), nullcontext)
    assert all((await bench.evaluation(Rows())).answered.values())
    engines[0].lives = False
    later = msgspec.structs.replace(WEIGHTS, version=WEIGHTS.version + 1)
    lease = msgspec.structs.replace(eval_lease(), version=later.version)
    scored = await bench.evaluator.score(lease, bench.stage(), cast(Any, Rows()), later)
    assert scored.metrics == {"failed_rows": 0.0}
    assert opened == engines


async def test_the_explorer_ends_where_the_engine_that_it_shares_dies(tmp_path: Path) -> None:
    """Its rollouts have no other one either, and a new process opens one."""
    bench = Bench(tmp_path, Mortal(lives=True))
    gate = VersionGate()
    bench.evaluator._engine = SharedEngine(cast(Any, bench.engine), gate, nullcontext)
    await bench.engine.load_weights(WEIGHTS)
    gate.set_weights(WEIGHTS.version, WEIGHTS.generation)
    assert all((await bench.evaluation(Rows())).answered.values())
    cast(Mortal, bench.engine).lives = False
    with pytest.raises(WorkError, match="the rollout engine failed: the engine is dead"):
        await bench.evaluation(Rows())
    assert not gate.held
    await bench.evaluator.close()
    assert not cast(Mortal, bench.engine).closed, "it is the explorer's to close"
