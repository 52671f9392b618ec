"""`VllmRolloutEngine`: the asyncio interface of vLLM's processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec

from rftd.ops.clock import Clock
from rftd.ops.decoding import converted
from rftd.ops.errors import DataError, RolloutError, WeightsElsewhereError
from rftd.workers.engines.vllm.flights import GroupAnswers, RequestFlight, WeightSwap
from rftd.workers.engines.vllm.processes import GRACE_S, EngineProcesses, set_environment
from rftd.workers.engines.vllm.sockets import SocketFolder
from rftd.workers.engines.vllm.start import start
from rftd.workers.engines.vllm.watchdog import HANG_S, Vitals, Watchdog
from rftd.workers.generation.engine import Answers, EngineStats, Generation, GenerationRequest
from rftd.workers.weights.channel import WeightsRef

_WEIGHTS_TIMEOUT_S: Final = 600.0
"""Time-out in seconds for opening or swapping weights."""
_FIRST_PAUSE_S: Final = 0.005
"""Pause in seconds between the first two checks of weights being opened."""
_PAUSE_GROWTH: Final = 1.25
"""Factor from one pause to the next."""
_MAX_PAUSE_S: Final = 0.05
"""Longest pause in seconds between two checks."""


class VllmRolloutEngine:
    """A `RolloutEngine` running vLLM's models by vLLM, on this machine's devices."""

    def __init__(self, llm: Any, processes: EngineProcesses, counters: Any, form: Any, *, slots: int) -> None:
        """Wraps a started vLLM; callers use `open`.

        `llm` is vLLM's AsyncLLM, `processes` are its processes, `counters` its token counters, `form` converts requests
        to its parameters; `slots` requests run at once.
        """
        self._llm = llm
        self._processes = processes
        self._counters = counters
        self._request_form = form
        self._version = (-1, -1)
        """Version and generation of the weights in use; (-1, -1) before the first."""
        # Requests beyond the slots wait here and not in vLLM: a request waiting there was assigned the cache of older
        # weights.
        self._slots = asyncio.Semaphore(slots)
        self._accepting = asyncio.Event()
        """Set except during a swap of weights; requests are submitted only while set."""
        self._has_failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Future resolved when the engine fails or closes, to end waiting calls."""
        self._load_lock = asyncio.Lock()
        """Held while weights are opened and swapped: one load at a time."""
        self._loads: set[asyncio.Future[str]] = set()
        """Loads under way, shielded from the cancellation of their callers."""
        self._request_names = count()
        self._flights: dict[str, RequestFlight] = {}
        """Submitted requests by their name at vLLM."""
        self._unfinished_requests = 0
        """Number of requests waiting for a slot or running."""
        self._requests_total = 0
        self._unanswered_calls = 0
        """Number of unanswered calls of workers' methods."""
        self._answered_calls = 0
        self._error: RolloutError | None = None
        """First failure of the engine; None while it works."""
        self._is_hanging = False
        """True once the watchdog found the processes hanging."""
        self.transfer_s = 0.0
        """Seconds of the last `load_weights` before the swap: opening and verification; 0 before the first load."""
        self._watch_task: asyncio.Future[None] | None = None

    @classmethod
    async def open(
        cls,
        arguments: Mapping[str, Any],
        *,
        slots: int,
        device: str = "auto",
        start_timeout_s: float,
        biased: Collection[int] = (),
        hang_timeout_s: float = HANG_S,
        clock: Clock,
        gpus: range = range(0),
    ) -> VllmRolloutEngine:
        """Opens an engine for vLLM's `arguments`; the first `load_weights` makes it usable.

        `slots` requests run at once; `biased` are the token ids with a bias in some taskset; `hang_timeout_s` without
        progress end the engine (0: never); `gpus` are indices among this process's GPUs (empty: all). Raises DataError
        without a model folder, ConfigError if the installed vLLM does not support the device, RolloutError if vLLM does
        not start, is not ready in time, or lacks such tokens.
        """
        folder = str(arguments["model"])
        if not (Path(folder) / "config.json").is_file():
            raise DataError("no model folder", where=folder, fix="model.model_path must name a Hugging Face folder")
        set_environment()
        processes = EngineProcesses(await asyncio.to_thread(SocketFolder))
        engine: VllmRolloutEngine | None = None
        try:
            begin = partial(start, dict(arguments), device)
            llm, counters, form = await processes.started(begin, start_timeout_s, gpus=gpus)
            engine = cls(llm, processes, counters, form, slots=slots)
            engine.watch(hang_timeout_s, clock)
            for token in biased:
                form.check_token(token)
            processes.need(await engine._call("prepare_rollouts", folder, all_workers=True))
            # vLLM requests them from its process at the first request, and would wait for ever for a process hanging by
            # then.
            await engine._await_workers(llm.get_supported_tasks())
        except BaseException:
            if engine is not None:
                engine._stop_watching()
            await asyncio.shield(asyncio.to_thread(processes.end))
            raise
        return engine

    def watch(self, hang_timeout_s: float, clock: Clock) -> None:
        """Starts watching for ended or hanging processes, which fail the engine at once; replaces an earlier watch."""
        self._stop_watching()
        self._watch_task = asyncio.ensure_future(
            self._watch_until_trouble(Watchdog(self._vitals, hang_timeout_s=hang_timeout_s, clock=clock))
        )

    async def _watch_until_trouble(self, watchdog: Watchdog) -> None:
        """Fails the engine at the first death or hang of its processes, and kills the remaining ones."""
        trouble = await watchdog.trouble()
        if trouble.quiet_s:
            self._fail(trouble.error(self._processes.states()))
            self._is_hanging = True
        else:
            self._record_death(None)
            if not self._processes.lost:
                return  # the processes end by themselves
        # Killed at once: a hanging process, or one waiting for an ended process, would ignore requests and keep its
        # memory.
        await asyncio.to_thread(self._processes.kill)

    def _vitals(self) -> Vitals:
        """Returns the engine's state as judged by the watchdog."""
        return Vitals(
            dead=bool(self._llm.errored) or self._processes.lost,
            work=len(self._flights) + self._unanswered_calls,
            tokens_total=self._counters.tokens_total,
            progress=(self._counters.progress, self._answered_calls),
        )

    def _stop_watching(self) -> None:
        """Cancels the watch, if any."""
        if self._watch_task is not None:
            # Killing a hanging engine continues, because it runs on a thread.
            self._watch_task.cancel()

    @property
    def version(self) -> tuple[int, int]:
        """(version, generation) of the weights in use; (-1, -1) before the first."""
        return self._version

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of vLLM's engine core and workers."""
        return self._processes.pids

    @property
    def holds_schemas(self) -> bool:
        """True: responses follow a request's JSON schema, because vLLM bans all other tokens."""
        return True

    async def generate(self, request: GenerationRequest) -> Generation:
        """Returns the response to one request. A cancelled request frees its slot before the next token."""
        self._check_alive()
        self._request_form.check(request)
        self._requests_total += 1
        self._unfinished_requests += 1
        try:
            async with self._slots:
                return await self._generate_in_slot(request)
        finally:
            self._unfinished_requests -= 1

    @asynccontextmanager
    async def generate_each(self, requests: Sequence[GenerationRequest]) -> AsyncIterator[Answers]:
        """Yields the responses to several requests as they finish."""
        answers = GroupAnswers(len(requests))
        failure: Exception | None = None
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._put_response(request, n, answers)) for n, request in enumerate(requests)]
            try:
                yield answers
            except Exception as error:  # the group would wrap the caller's error
                failure = error
            finally:
                for task in tasks:
                    task.cancel()
        if failure is not None:
            raise failure

    async def load_weights(self, weights: WeightsRef) -> str:
        """Opens and verifies weights while requests run, then swaps them in between two tokens."""
        load = asyncio.ensure_future(self._swap_weights(weights))
        self._loads.add(load)
        load.add_done_callback(self._load_done)
        # Shielded: once requested, the workers swap in any case, and the tokens must be marked.
        return await asyncio.shield(load)

    async def _swap_weights(self, weights: WeightsRef) -> str:
        """Opens weights on every worker, swaps them in, and returns their checksum; one load at a time."""
        async with self._load_lock:
            began_s = asyncio.get_running_loop().time()
            await self._open_weights(weights)
            self.transfer_s = asyncio.get_running_loop().time() - began_s
            version = (weights.version, weights.generation)
            # New requests wait for these milliseconds, so that each is submitted with the version that draws it.
            self._accepting.clear()
            try:
                self._note_swap(version, await self._call("swap_rollout_weights"))
                self._version = version
            except RolloutError as error:
                # The extent of the swap is unknown: part of the weights may be the old ones.
                self._fail(RolloutError(f"the swap of weights failed: {error.what}", where=weights.path))
                raise
            finally:
                self._accepting.set()
        return weights.checksum

    def _load_done(self, load: asyncio.Future[str]) -> None:
        """Forgets a finished load, and marks its error as retrieved."""
        self._loads.discard(load)
        if not load.cancelled():
            load.exception()  # raised to the waiting caller, if any

    def stats(self) -> EngineStats:
        """Returns the counters, for heartbeats and metrics."""
        running = min(self._counters.running, len(self._flights))
        return EngineStats(
            tokens_total=self._counters.tokens_total,
            requests_total=self._requests_total,
            running=running,
            waiting=max(0, self._unfinished_requests - running),
            error=self._error.what if self._error is not None else "",
        )

    async def close(self) -> None:
        """Stops vLLM's processes; running requests raise RolloutError. Idempotent."""
        if self._error is None:
            self._fail(RolloutError("the engine was closed"))
        self._stop_watching()
        await asyncio.to_thread(self._stop_processes)

    def _stop_processes(self) -> None:
        """Ends vLLM's processes: at once if they hang or one is lost, otherwise gracefully."""
        if self._is_hanging or self._processes.lost:
            # A process outliving another of its engine waits for it until a time-out, and keeps the memory meanwhile.
            self._processes.kill()
        self._llm.shutdown(timeout=GRACE_S)
        self._processes.end()

    async def _put_response(self, request: GenerationRequest, number: int, answers: GroupAnswers) -> None:
        """Generates one response of a group and puts it, or its error, into `answers`."""
        try:
            answers.put(number, await self.generate(request))
        except RolloutError as error:
            answers.put(number, error)

    async def _generate_in_slot(self, request: GenerationRequest) -> Generation:
        """Generates a response for a request that has a slot; waits for a swap of weights under way."""
        await self._accepting.wait()
        self._check_alive()
        flight = RequestFlight(request, str(next(self._request_names)), self._version)
        self._flights[flight.name] = flight
        try:
            output = await self._last_output(flight)
            # An update with marks still on their way may have changed the weights during the request.
            if not self._accepting.is_set():
                await self._accepting.wait()
            return flight.generation(output)
        finally:
            self._flights.pop(flight.name, None)

    async def _last_output(self, flight: RequestFlight) -> Any:
        """Submits a request to vLLM and returns its last output; aborts it when cancelled or refused."""
        from vllm.inputs.engine import tokens_input
        from vllm.v1.engine.exceptions import EngineDeadError

        version, generation = flight.version
        # The salt separates prompts from cache blocks computed by other weights.
        prompt = tokens_input(list(flight.request.prompt), cache_salt=f"{version}-{generation}")
        try:
            flight.collector = await self._llm.add_request(
                flight.name, prompt, self._request_form.params(flight.request)
            )
            # The engine may have failed during the submission, and nothing would answer.
            self._check_alive()
            output = await flight.collector.get()
            while not output.finished:
                flight.tell(output)
                output = await flight.collector.get()
            return output
        except EngineDeadError as error:
            raise self._record_death(error) from error
        except RolloutError:
            if self._error is None:  # the request's own error: vLLM continues with the request
                await self._llm.abort(flight.name)
            raise
        except asyncio.CancelledError:
            await self._llm.abort(flight.name)
            raise
        except Exception as error:  # vLLM raises refusals of many classes
            await self._llm.abort(flight.name)
            if flight.request.sampling.json_schema:  # after the checks above, only a schema can be refused
                raise RolloutError(
                    f"vLLM cannot constrain a response to this schema: {error}",
                    field="json_schema",
                    fix="use only the parts of JSON Schema that its grammars support",
                ) from error
            raise RolloutError(f"vLLM refuses request {flight.request.id}: {error}") from error

    async def _open_weights(self, weights: WeightsRef) -> None:
        """Waits until every worker has opened and verified the weights. Raises the first refusal."""
        from rftd.workers.engines.vllm.worker import OpeningState

        self._check_alive()
        is_open = False
        try:
            answers = await self._call("open_rollout_weights", msgspec.to_builtins(weights), all_workers=True)
            states = [converted(answer, OpeningState) for answer in answers]
            pause_s = _FIRST_PAUSE_S
            while any(state.opening for state in states):
                await asyncio.sleep(pause_s)
                # Each check is answered between two steps.
                pause_s = min(_MAX_PAUSE_S, pause_s * _PAUSE_GROWTH)
                answers = await self._call("rollout_weights_state", all_workers=True)
                states = [converted(answer, OpeningState) for answer in answers]
            for refusal in (state.refusal for state in states if state.refusal is not None):
                kind = WeightsElsewhereError if refusal.code == WeightsElsewhereError.code else RolloutError
                raise kind(refusal.what, where=refusal.where or None, fix=refusal.fix or None)
            is_open = True
        finally:
            if not is_open and self._error is None:
                await self._call("drop_rollout_weights")

    def _note_swap(self, version: tuple[int, int], answer: Mapping[str, Any]) -> None:
        """Records in every request under way its first token drawn by the new weights."""
        from rftd.workers.engines.vllm.worker import SwapMarks

        marks = converted(answer, SwapMarks)
        # vLLM appends a hyphen and a suffix to the name of a request.
        drawn = {name.rpartition("-")[0]: tokens for name, tokens in marks.drawn.items()}
        for flight in self._flights.values():
            flight.swaps.append(WeightSwap(version, marks.at_s, drawn.get(flight.name)))

    async def _call(self, method: str, *arguments: Any, all_workers: bool = False) -> Any:
        """Calls a method of the workers; returns the first worker's answer, or with `all_workers` all answers."""
        answers = await self._await_workers(
            self._llm.collective_rpc(method, timeout=_WEIGHTS_TIMEOUT_S, args=arguments)
        )
        return answers if all_workers else answers[0]

    async def _await_workers(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Awaits a call of vLLM until it is answered or the engine fails. Raises RolloutError."""
        from vllm.v1.engine.exceptions import EngineDeadError

        call = asyncio.ensure_future(coroutine)
        self._unanswered_calls += 1
        try:
            self._check_alive()
            # vLLM leaves a call unanswered if its processes end or hang meanwhile.
            await asyncio.wait((call, self._has_failed), return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                self._check_alive()
            self._answered_calls += 1
            return call.result()
        except EngineDeadError as error:
            raise self._record_death(error) from error
        except RolloutError:
            raise
        except Exception as error:  # errors of a worker come back as bare Exception
            raise RolloutError(f"vLLM's worker failed: {error}") from error
        finally:
            self._unanswered_calls -= 1
            call.cancel()

    def _check_alive(self) -> None:
        """Raises RolloutError if the engine has failed or was closed."""
        if self._error is None and self._llm.errored:
            self._record_death(None)
        if self._error is not None:
            raise RolloutError(self._error.what, fix=self._error.fix) from self._error

    def _record_death(self, cause: Exception | None) -> RolloutError:
        """Fails the engine because vLLM's processes ended; returns the error for every caller."""
        ended_names = self._processes.ended()
        which = f": process {', '.join(ended_names)} ended" if ended_names else f": {cause}" if cause else ""
        death = RolloutError(
            f"vLLM's engine died{which}",
            fix="see the explorer's log; the explorer restarts, and its rollouts are leased again",
        )
        self._fail(death)
        return self._error or death

    def _fail(self, error: RolloutError) -> None:
        """Marks the engine as failed, and passes the error to every request under way; the first error remains."""
        self._error = self._error or error
        # Waiting requests continue, and receive the error.
        self._accepting.set()
        if not self._has_failed.done():
            self._has_failed.set_result(None)
        for flight in list(self._flights.values()):
            if flight.collector is not None:
                flight.collector.put(RolloutError(error.what, fix=error.fix))
