"""When an engine of vLLM hangs or died, by what is seen of it; vLLM itself is not needed for it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
from synthetic.until import until

from rftd.ops.clock import ManualClock
from rftd.ops.errors import RolloutError, WorkError
from rftd.workers.engines.vllm.engine import VllmRolloutEngine
from rftd.workers.engines.vllm.watchdog import FIRST_S, Trouble, Vitals, Watchdog
from rftd.workers.generation.engine import check_lives

pytestmark = pytest.mark.anyio
TIMEOUT_S = 30.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Looked(Exception):
    """The engine was looked at for as long as the test lasts."""


async def seen(vitals: Callable[[float], Vitals], *, timeout_s: float = TIMEOUT_S, for_s: float) -> Trouble | None:
    """The watchdog's finding on an engine that looks like this after so many seconds; None within `for_s`: none."""
    clock = ManualClock()
    began_s = clock.monotonic_s()

    def look() -> Vitals:
        passed_s = clock.monotonic_s() - began_s
        if passed_s > for_s:
            raise Looked
        return vitals(passed_s)

    with suppress(Looked):
        return await Watchdog(look, hang_timeout_s=timeout_s, clock=clock).trouble()
    return None


def vitals(*, progress: float = 7, work: int = 3, tokens: int = 100, dead: bool = False) -> Vitals:
    return Vitals(dead=dead, work=work, tokens_total=tokens, progress=(int(progress), 0))


async def test_requests_without_progress_are_a_hang_that_says_for_how_long_and_over_what() -> None:
    trouble = await seen(lambda _: vitals(), for_s=100)
    assert trouble == Trouble(pytest.approx(TIMEOUT_S), 3)
    assert trouble is not None
    error = trouble.error(["12 stopped", "13 sleeping"])
    assert "hangs: no progress for 30 s (" in error.what
    assert "with 3 requests" in error.what
    assert "12 stopped, 13 sleeping" in error.what
    assert "hang_timeout_s" in error.what, "the explorer's reason is made of these words"


async def test_slow_progress_or_no_work_is_none() -> None:
    slow = 0.9 * TIMEOUT_S
    assert await seen(lambda passed_s: vitals(progress=passed_s / slow), for_s=1000) is None
    assert await seen(lambda _: vitals(work=0), for_s=1000) is None
    assert await seen(lambda passed_s: vitals(work=int(passed_s % slow > 2)), for_s=1000) is None
    assert await seen(lambda _: vitals(), timeout_s=0.0, for_s=10_000) is None


async def test_requests_that_come_and_go_without_progress_are_a_hang() -> None:
    trouble = await seen(lambda passed_s: vitals(work=1 + int(passed_s) % 5), for_s=100)
    assert trouble is not None
    assert trouble.quiet_s >= TIMEOUT_S


async def test_the_first_token_may_wait_for_what_is_compiled() -> None:
    assert await seen(lambda _: vitals(tokens=0), for_s=FIRST_S - 10) is None
    assert await seen(lambda _: vitals(tokens=0), for_s=FIRST_S + 10) is not None
    assert await seen(lambda _: vitals(tokens=0), timeout_s=2 * FIRST_S, for_s=1.5 * FIRST_S) is None


async def test_the_time_in_which_this_process_was_held_up_is_not_vllms() -> None:
    """As after a debugger, or a machine that slept: what vLLM said meanwhile was not heard."""
    clock = ManualClock()
    looks = 0

    def look() -> Vitals:
        nonlocal looks
        looks += 1
        if looks == 3:
            clock.advance(10 * TIMEOUT_S)
        if looks > 10:
            raise Looked
        return vitals()

    with pytest.raises(Looked):
        await Watchdog(look, hang_timeout_s=TIMEOUT_S, clock=clock).trouble()


async def test_a_death_is_noticed_without_work() -> None:
    assert await seen(lambda passed_s: vitals(work=0, dead=passed_s > 5), for_s=100) == Trouble(0.0, 0)


class Processes:
    """Stands for the processes of vLLM."""

    pids = (12,)

    def __init__(self) -> None:
        self.gone: list[str] = []
        self.lost = False
        self.killed = False

    def ended(self) -> list[str]:
        return self.gone

    def states(self) -> list[str]:
        return ["12 stopped"]

    def kill(self) -> None:
        self.killed = True

    def end(self) -> None: ...


def engine_of(llm: Any, processes: Processes, *, timeout_s: float) -> VllmRolloutEngine:
    """The engine over something that stands for vLLM, watched."""
    counters = SimpleNamespace(running=0, tokens_total=1, progress=1)
    engine = VllmRolloutEngine(llm, cast(Any, processes), counters, None, slots=4)
    engine.watch(timeout_s, ManualClock())
    return engine


async def test_an_idle_engine_of_which_a_process_ends_says_so_by_itself() -> None:
    llm = SimpleNamespace(errored=False, shutdown=lambda timeout: None)
    processes = Processes()
    engine = engine_of(llm, processes, timeout_s=0.0)
    check_lives(engine)
    processes.gone = ["12"]
    llm.errored = True
    await until(lambda: bool(engine.stats().error))
    with pytest.raises(WorkError, match="vLLM's engine died: process 12 ended"):
        check_lives(engine)
    assert not processes.killed, "vLLM ends the others by itself"
    await engine.close()
    assert "12 ended" in engine.stats().error


async def test_ended_worker_is_noticed_before_vllm_and_leaves_no_waiting_peer() -> None:
    processes = Processes()
    engine = engine_of(SimpleNamespace(errored=False, shutdown=lambda timeout: None), processes, timeout_s=0.0)
    processes.gone = ["12"]
    processes.lost = True
    await until(lambda: processes.killed)
    with pytest.raises(WorkError, match="vLLM's engine died: process 12 ended"):
        check_lives(engine)
    await engine.close()


async def test_a_hanging_engine_fails_its_requests_and_ends_its_processes() -> None:
    processes = Processes()
    engine = engine_of(SimpleNamespace(errored=False, shutdown=lambda timeout: None), processes, timeout_s=TIMEOUT_S)
    told: list[Exception] = []
    collector = SimpleNamespace(put=told.append)
    engine._flights["0"] = cast(Any, SimpleNamespace(collector=collector))
    await until(lambda: processes.killed)
    assert "12 stopped" in engine.stats().error
    assert [type(each) for each in told] == [RolloutError]
    with pytest.raises(RolloutError, match="hangs"):
        engine._check_alive()
    await engine.close()
