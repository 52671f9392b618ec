"""An asyncio event loop with virtual time on which several processes live, and die where a seed says.

Within one process callbacks run in the order of `call_soon`, as asyncio promises; which process runs next is drawn.
Time stands still while anything can run, and jumps to the next timer when nothing can. There are no threads: work of an
executor runs on the loop, after virtual seconds. Each callback runs in a greenlet, so that a process can be killed or
stopped in the middle of it: the greenlet is left where it stands, and no `finally` of it runs.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from typing import Any

from greenlet import greenlet

PROCESS: contextvars.ContextVar[SimProcess] = contextvars.ContextVar("process")

TURNS_AT_ONE_TIME = 100_000
"""A loop that turns so often without time passing will turn for ever."""

_enter: Callable[..., None] = asyncio.tasks._enter_task  # type: ignore[attr-defined]
_leave: Callable[..., None] = asyncio.tasks._leave_task  # type: ignore[attr-defined]


class StalledError(AssertionError):
    """Nothing is left that could ever run, or something runs without end."""


class SimTask(asyncio.Task[Any]):
    """A task whose place in sets does not depend on its address."""

    numbers = 0

    def __init__(self, coro: Coroutine[Any, Any, Any], **options: Any) -> None:
        SimTask.numbers += 1
        self.number = SimTask.numbers
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self.number


class SimProcess:
    """What is killed and stopped as a whole: callbacks that carry its name in their context."""

    def __init__(self, loop: SimLoop, name: str, role: str, pid: int) -> None:
        self.loop, self.name, self.role, self.pid = loop, name, role, pid
        self.start_s = loop.time()
        self.alive = True
        self.stopped = False
        self.exit_code: int | None = None
        self.ready: deque[asyncio.Handle] = deque()
        self.frozen: greenlet | None = None
        """The callback in whose middle it was stopped."""
        self.hits: Counter[str] = Counter()
        self.context = contextvars.Context()
        self.context.run(PROCESS.set, self)
        self.died_s = float("inf")
        self.logger: Any = None
        """Where it says what happens."""
        self.disturbed_s = -1e9
        """When it was last stopped, or cut off from the log."""

    @property
    def running(self) -> bool:
        """True if it may do something now."""
        return self.alive and not self.stopped

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Its task that does `work`."""
        return self.loop.create_task(work, context=self.context)

    def kill(self, code: int = -9) -> None:
        """SIGKILL: nothing of it runs any more. Returns to its caller only if that is another process."""
        if not self.alive:
            return
        self.alive, self.exit_code, self.died_s = False, code, self.loop.time()
        self.loop.bury(self)

    def stop(self) -> None:
        """SIGSTOP: time passes without it."""
        if self.running:
            self.stopped = True
            self.disturbed_s = self.loop.time()
            self.loop.pause(self)

    def wake(self) -> None:
        """SIGCONT."""
        self.disturbed_s = self.loop.time()
        self.stopped = False


class LoggedErrors(list[str]):
    """Texts of errors that nobody caught, without those that a kind of fault causes on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.expected: list[str] = []
        """Words of the texts that are no failure."""

    def append(self, text: str) -> None:
        """Takes in an error that nobody expects."""
        if not any(words in text for words in self.expected):
            super().append(text)


class SimLoop(asyncio.AbstractEventLoop):
    """Deterministic: the same seed and work give the same order of everything."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.processes: list[SimProcess] = []
        self._live: list[SimProcess] = []
        self.trace = 0
        """Of every turn so far: which process ran, when."""
        self.turns = 0
        self.current: SimProcess | None = None
        self.errors = LoggedErrors()
        """What nobody caught: texts of the loop's exception handler."""
        self.executor_delay_s: Callable[[SimProcess], float] = lambda _process: 0.0
        self._now_s = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._sequence = 0
        self._busy_until: dict[Any, float] = {}
        self._graves: list[Any] = []
        self._spare: list[greenlet] = []
        self._hub: greenlet | None = None
        self._handle: asyncio.Handle | None = None
        self._closed = False
        self.tasks: list[asyncio.Task[Any]] = []

    def process(self, name: str, role: str, pid: int) -> SimProcess:
        """A new process."""
        made = SimProcess(self, name, role, pid)
        self.processes.append(made)
        self._live.append(made)
        return made

    # What asyncio asks of a loop.

    def time(self) -> float:
        return self._now_s

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._hub is not None

    def is_closed(self) -> bool:
        return self._closed

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> asyncio.Task[Any]:
        task = SimTask(coro, loop=self, name=name or "task", context=context)
        self.tasks.append(task)  # so that no dead process's coroutine is collected, which would run its `finally`
        return task

    def get_task_factory(self) -> Any:
        """The one kind of tasks: nobody may give the loop another, which would not know its processes."""
        return SimTask

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        if self._closed:
            raise RuntimeError("the simulation is over")
        context = context or contextvars.copy_context()
        handle = asyncio.Handle(callback, args, self, context)
        process = context[PROCESS]
        if process.alive:
            process.ready.append(handle)
        else:
            self._graves.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        if self._closed:
            raise RuntimeError("the simulation is over")
        handle = asyncio.TimerHandle(when, callback, args, self, context or contextvars.copy_context())
        self._sequence += 1
        heapq.heappush(self._timers, (when, self._sequence, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        return  # it is dropped when it is due

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Runs `func` on the loop after virtual seconds; calls on one executor follow one another."""
        process = PROCESS.get()
        done = self.create_future()
        begin = max(self._now_s, self._busy_until.get(executor, 0.0) if executor is not None else 0.0)
        end = begin + self.executor_delay_s(process)
        if executor is not None:
            self._busy_until[executor] = end
        outcome: list[Any] = []

        def work() -> None:
            try:
                outcome[:] = [func(*args), None]
            except Exception as error:
                outcome[:] = [None, error]

        def settle() -> None:
            if not outcome:
                work()
            if done.done():
                return
            if outcome[1] is None:
                done.set_result(outcome[0])
            else:
                done.set_exception(outcome[1])

        if self.random.random() < 0.5:
            self.call_at(begin, work)
        self.call_at(end, settle)
        return done

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._closed and (process := self.current) is not None and process.alive:
            error = context.get("exception")
            self.errors.append(f"{process.name}: {context.get('message')}: {type(error).__name__}: {error}")

    # Processes.

    def bury(self, process: SimProcess) -> None:
        """Forgets nothing of a dead process and runs nothing of it. From inside of it this does not return."""
        self._live.remove(process)
        self._graves += [*process.ready, process.frozen]
        process.ready.clear()
        if self.current is process:
            self._leave_middle("killed")

    def pause(self, process: SimProcess) -> None:
        """Leaves a callback of the process in its middle, if that is what runs."""
        if self.current is process:
            self._leave_middle("stopped")

    def _leave_middle(self, how: str) -> None:
        if self._hub is None:
            return
        task = asyncio.current_task(self)
        if task is not None:
            _leave(self, task)
        self._hub.switch(how)
        if task is not None:
            _enter(self, task)

    # Running.

    def run(self, main: asyncio.Task[Any], *, limit_s: float) -> bool:
        """Runs until `main` is done: True; False once `limit_s` virtual seconds are over. Raises StalledError."""
        self._hub = greenlet.getcurrent()
        asyncio._set_running_loop(self)
        try:
            turns = 0
            while not main.done():
                runnable = [each for each in self._live if (each.ready or each.frozen) and not each.stopped]
                if runnable:
                    turns += 1
                    if turns > TURNS_AT_ONE_TIME:
                        raise StalledError(f"{runnable[0].name} turns without end at {self._now_s:.3f} s")
                    self._turn(runnable[0] if len(runnable) == 1 else self.random.choice(runnable))
                    continue
                turns = 0
                if not self._advance(limit_s):
                    return False
            return True
        finally:
            asyncio._set_running_loop(None)
            self._hub = None

    def _advance(self, limit_s: float) -> bool:
        """Moves time to the next timer, and hands every timer that is due to its process."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not timers:
            raise StalledError(f"nothing is left that could run at {self._now_s:.3f} s")
        if timers[0][0] > limit_s:
            self._now_s = limit_s
            return False
        self._now_s = max(self._now_s, timers[0][0])
        while timers and timers[0][0] <= self._now_s:
            handle = heapq.heappop(timers)[2]
            if handle.cancelled():
                continue
            process = handle._context[PROCESS]  # type: ignore[attr-defined]
            if process.alive:
                process.ready.append(handle)
            else:
                self._graves.append(handle)
        return True

    def _turn(self, process: SimProcess) -> None:
        """One pass of one process's loop."""
        self.turns += 1
        self.trace = hash((self.trace, process.pid, self._now_s, len(process.ready)))  # of numbers: no seed is in it
        self.current = process
        if (frozen := process.frozen) is not None:
            process.frozen = None
            self._settle(process, frozen, frozen.switch())
        for _ in range(len(process.ready)):
            if not process.running or not process.ready:
                break
            handle = process.ready.popleft()
            if handle.cancelled():
                continue
            self._handle = handle
            runner = self._spare.pop() if self._spare else greenlet(self._serve)
            if (how := runner.switch()) == "done":
                self._spare.append(runner)
            else:
                self._settle(process, runner, how)
        self.current = None

    def _settle(self, process: SimProcess, runner: greenlet, how: str) -> None:
        if how == "done":
            self._spare.append(runner)
        elif how == "stopped":
            process.frozen = runner
        else:
            self._graves.append(runner)

    def _serve(self) -> None:
        """Runs callbacks, one each time that the loop switches here."""
        while True:
            handle, self._handle = self._handle, None
            assert handle is not None
            handle._run()  # type: ignore[attr-defined]
            if self._hub is None:  # collected after the end, in the middle of a callback
                return
            self._hub.switch("done")

    def close(self) -> None:
        """Ends it; what was left in its middle is collected, and can do nothing any more."""
        self._closed = True
        for process in self.processes:
            process.alive = False
            process.ready.clear()
        self._timers.clear()
        self._graves.clear()
        self._spare.clear()
        self.tasks.clear()
        self._busy_until.clear()
        for process in self.processes:
            process.frozen = None
