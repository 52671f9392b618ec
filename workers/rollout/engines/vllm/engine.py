"""`VllmRolloutEngine`: the asyncio front of vLLM's processes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec

from rftd.ops.decoding import converted
from rftd.ops.errors import ConfigError, DataError, RolloutError, WeightsElsewhereError
from rftd.workers.rollout.engine import Answers, EngineStats, Generation, GenerationRequest
from rftd.workers.rollout.engines.vllm.flights import RequestFlight, WeightSwap
from rftd.workers.rollout.engines.vllm.processes import GRACE_S, EngineProcesses, set_environment
from rftd.workers.weights.channel import WeightsRef

_UPDATE_S: Final = 600.0
"""The longest that opening or swapping weights may take."""
_CPU_CACHE_BYTES: Final = 1 << 30
_OPENING_S: Final = 0.005
"""The pause between two questions for weights that are being opened."""
_LOOK_S: Final = 1.0
"""The pause between two looks whether vLLM's processes live, while it is waited for an answer of theirs."""


class VllmRolloutEngine:
    """The `RolloutEngine` over vLLM, for the models that it knows, on this machine's devices."""

    def __init__(self, llm: Any, processes: EngineProcesses, counters: Any, form: Any, *, slots: int) -> None:
        """Use `open`."""
        self._llm = llm
        self._processes = processes
        self._counters = counters
        self._form = form
        self._version = (-1, -1)
        # Requests beyond the slots wait here and not in vLLM: what waits there was given to older weights' cache.
        self._room = asyncio.Semaphore(slots)
        self._open = asyncio.Event()
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._update = asyncio.Lock()
        self._loads: set[asyncio.Future[str]] = set()
        self._names = count()
        self._flights: dict[str, RequestFlight] = {}
        self._asked = 0
        self._requests_total = 0
        self._error: RolloutError | None = None

    @classmethod
    async def open(
        cls,
        arguments: Mapping[str, Any],
        *,
        slots: int,
        device: str = "auto",
        start_timeout_s: float,
        biased: Collection[int] = (),
    ) -> VllmRolloutEngine:
        """An engine that waits for its first `load_weights`; `arguments` are vLLM's.

        `slots` requests run at once; `biased` are the token ids that tasksets have a bias for. Raises DataError if
        there is no model folder, ConfigError if the installed vLLM has no such device, RolloutError if vLLM does not
        start, is not ready in time, or has no such tokens.
        """
        folder = str(arguments["model"])
        if not (Path(folder) / "config.json").is_file():
            raise DataError("no model folder", where=folder, fix="model.model_path must name a Hugging Face folder")
        set_environment()
        processes = EngineProcesses()
        try:
            llm, counters, form = await processes.started(partial(_started, dict(arguments), device), start_timeout_s)
            engine = cls(llm, processes, counters, form, slots=slots)
            for token in biased:
                form.check_token(token)
            await engine._call("prepare_rollouts", folder)
        except BaseException:
            await asyncio.shield(asyncio.to_thread(processes.end))
            raise
        return engine

    @property
    def version(self) -> tuple[int, int]:
        """(version, generation) of the weights in use; (-1, -1) before the first."""
        return self._version

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes of vLLM."""
        return self._processes.pids

    @property
    def holds_schemas(self) -> bool:
        """True: vLLM bans the tokens that a schema does not allow."""
        return True

    async def generate(self, request: GenerationRequest) -> Generation:
        """The response to one request. Cancelling it frees its slot before the next token."""
        self._alive()
        self._form.check(request)
        self._requests_total += 1
        self._asked += 1
        try:
            async with self._room:
                return await self._drawn(request)
        finally:
            self._asked -= 1

    @asynccontextmanager
    async def generate_each(self, requests: Sequence[GenerationRequest]) -> AsyncIterator[Answers]:
        """The responses to several requests, as they come."""
        answers = _GroupAnswers(len(requests))
        failure: Exception | None = None
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._answer(each, n, answers)) for n, each in enumerate(requests)]
            try:
                yield answers
            except Exception as error:  # the group would wrap what the caller raises
                failure = error
            finally:
                for task in tasks:
                    task.cancel()
        if failure is not None:
            raise failure

    async def load_weights(self, weights: WeightsRef) -> str:
        """Opens and verifies beside the running requests, then swaps between two of their tokens."""
        load = asyncio.ensure_future(self._load(weights))
        self._loads.add(load)
        load.add_done_callback(self._forget)
        # Shielded: once the workers are told, they swap in any case, and the tokens must be marked.
        return await asyncio.shield(load)

    async def _load(self, weights: WeightsRef) -> str:
        async with self._update:
            await self._opened(weights)
            version = (weights.version, weights.generation)
            # New requests wait for these milliseconds, so that each is handed over with the version that draws it.
            self._open.clear()
            try:
                self._mark(version, await self._call("swap_rollout_weights"))
                self._version = version
            except RolloutError as error:
                # Nobody knows how far it came: part of the weights may be the old ones.
                self._failed(RolloutError(f"the swap of weights failed: {error.what}", where=weights.path))
                raise
            finally:
                self._open.set()
        return weights.checksum

    def _forget(self, load: asyncio.Future[str]) -> None:
        self._loads.discard(load)
        if not load.cancelled():
            load.exception()  # it was raised to whoever still waited

    def stats(self) -> EngineStats:
        """Counters, for heartbeats and metrics."""
        running = min(self._counters.running, len(self._flights))
        return EngineStats(
            tokens_total=self._counters.tokens_total,
            requests_total=self._requests_total,
            running=running,
            waiting=max(0, self._asked - running),
            error=self._error.what if self._error is not None else "",
        )

    async def close(self) -> None:
        """Stops vLLM's processes; running requests raise RolloutError. Idempotent."""
        if self._error is None:
            self._failed(RolloutError("the engine was closed"))
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        if self._processes.ended():
            # What outlives a process of its engine waits for it until a time-out, and keeps the memory meanwhile.
            self._processes.kill()
        self._llm.shutdown(timeout=GRACE_S)
        self._processes.end()

    async def _answer(self, request: GenerationRequest, number: int, answers: _GroupAnswers) -> None:
        try:
            answers.put(number, await self.generate(request))
        except RolloutError as error:
            answers.put(number, error)

    async def _drawn(self, request: GenerationRequest) -> Generation:
        await self._open.wait()
        self._alive()
        flight = RequestFlight(request, str(next(self._names)), self._version)
        self._flights[flight.name] = flight
        try:
            output = await self._last_output(flight)
            # An update whose marks are still on their way may have changed the weights under it.
            if not self._open.is_set():
                await self._open.wait()
            return flight.generation(output)
        finally:
            self._flights.pop(flight.name, None)

    async def _last_output(self, flight: RequestFlight) -> Any:
        from vllm.inputs.engine import tokens_input
        from vllm.v1.engine.exceptions import EngineDeadError

        version, generation = flight.version
        # The salt keeps prompts from blocks that other weights computed.
        prompt = tokens_input(list(flight.request.prompt), cache_salt=f"{version}-{generation}")
        try:
            flight.collector = await self._llm.add_request(flight.name, prompt, self._form.params(flight.request))
            # It may have failed while the request was handed over, and then nobody would answer.
            self._alive()
            output = await flight.collector.get()
            while not output.finished:
                flight.tell(output)
                output = await flight.collector.get()
            return output
        except EngineDeadError as error:
            raise self._died(error) from error
        except RolloutError:
            raise
        except asyncio.CancelledError:
            await self._llm.abort(flight.name)
            raise
        except Exception as error:  # vLLM has no one class for what it refuses
            await self._llm.abort(flight.name)
            if flight.request.sampling.json_schema:  # nothing else of a request that was checked is refused
                raise RolloutError(
                    f"vLLM cannot hold a response to this schema: {error}",
                    field="json_schema",
                    fix="use what its grammars know of JSON schemas",
                ) from error
            raise RolloutError(f"vLLM refuses request {flight.request.id}: {error}") from error

    async def _opened(self, weights: WeightsRef) -> None:
        """Returns when every worker has the weights open and verified. Raises what the first refusal says."""
        from rftd.workers.rollout.engines.vllm.worker import OpeningState

        self._alive()
        opened = False
        try:
            answers = await self._call("open_rollout_weights", msgspec.to_builtins(weights), all_workers=True)
            states = [converted(each, OpeningState) for each in answers]
            while any(state.opening for state in states):
                await asyncio.sleep(_OPENING_S)
                answers = await self._call("rollout_weights_state", all_workers=True)
                states = [converted(each, OpeningState) for each in answers]
            for refusal in (state.refusal for state in states if state.refusal is not None):
                kind = WeightsElsewhereError if refusal.code == WeightsElsewhereError.code else RolloutError
                raise kind(refusal.what, where=refusal.where or None, fix=refusal.fix or None)
            opened = True
        finally:
            if not opened and self._error is None:
                await self._call("drop_rollout_weights")

    def _mark(self, version: tuple[int, int], answer: Mapping[str, Any]) -> None:
        """Notes in every request under way the token from which on the new weights draw."""
        from rftd.workers.rollout.engines.vllm.worker import SwapMarks

        marks = converted(answer, SwapMarks)
        # vLLM adds a hyphen and a suffix of its own to the name of a request.
        drawn = {name.rpartition("-")[0]: tokens for name, tokens in marks.drawn.items()}
        for flight in self._flights.values():
            flight.swaps.append(WeightSwap(version, marks.at_s, drawn.get(flight.name)))

    async def _call(self, method: str, *arguments: Any, all_workers: bool = False) -> Any:
        """The answer of the worker's method: of the first worker, or of all of them."""
        from vllm.v1.engine.exceptions import EngineDeadError

        self._alive()
        call = asyncio.ensure_future(self._llm.collective_rpc(method, timeout=_UPDATE_S, args=arguments))
        try:
            # vLLM leaves a call without an answer if its processes end meanwhile.
            while not call.done():
                await asyncio.wait((call, self._over), timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                if not call.done():
                    self._alive()
            answers = call.result()
        except EngineDeadError as error:
            raise self._died(error) from error
        except RolloutError:
            raise
        except Exception as error:  # whatever a worker raises comes back as a bare Exception
            raise RolloutError(f"vLLM's worker failed: {error}") from error
        finally:
            call.cancel()
        return answers if all_workers else answers[0]

    def _alive(self) -> None:
        # The handler is made with the first request; without it nothing has looked at the processes yet.
        if self._error is None and self._llm.output_handler is not None and self._llm.errored:
            self._died(None)
        if self._error is not None:
            raise RolloutError(self._error.what, fix=self._error.fix) from self._error

    def _died(self, cause: Exception | None) -> RolloutError:
        """What everybody is told now that vLLM's processes ended, unless they were ended."""
        gone = self._processes.ended()
        which = f": process {', '.join(gone)} ended" if gone else f": {cause}" if cause else ""
        found = RolloutError(
            f"vLLM's engine died{which}",
            fix="look into the explorer's log; it is started again, and what ran is leased again",
        )
        self._failed(found)
        return self._error or found

    def _failed(self, error: RolloutError) -> None:
        self._error = self._error or error
        # Whoever waits goes on, and is told.
        self._open.set()
        if not self._over.done():
            self._over.set_result(None)
        for flight in list(self._flights.values()):
            if flight.collector is not None:
                flight.collector.put(RolloutError(error.what, fix=error.fix))


def _started(arguments: dict[str, Any], device: str) -> tuple[Any, Any, Any]:
    """AsyncLLM, its counters, and what its requests have in common. It blocks for as long as vLLM takes to start."""
    # Here and not above: vLLM reads the environment while it is imported, and takes seconds for it.
    from transformers import GenerationConfig
    from vllm import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.engine.async_llm import AsyncLLM

    from rftd.workers.rollout.engines.vllm.counters import EngineCounters
    from rftd.workers.rollout.engines.vllm.requests import RequestForm

    found = "cpu" if current_platform.is_cpu() else "cuda"
    if device not in ("auto", found):
        raise ConfigError(f"the vLLM that is installed here runs on {found}, and {device} was asked for")
    if found == "cpu":
        # A share of the machine's memory would be taken from everybody else; compiling takes minutes for nothing.
        arguments.pop("gpu_memory_utilization", None)
        arguments.setdefault("kv_cache_memory_bytes", _CPU_CACHE_BYTES)
        arguments["enforce_eager"] = True
    counters = EngineCounters()
    llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments), stat_loggers=[counters])
    config = llm.model_config.hf_text_config
    ends = [config.eos_token_id, llm.get_tokenizer().eos_token_id]
    with contextlib.suppress(OSError):  # a folder need not have one
        ends.append(GenerationConfig.from_pretrained(arguments["model"], local_files_only=True).eos_token_id)
    flat = (end for each in ends for end in (each if isinstance(each, list | tuple) else [each]))
    known = frozenset(end for end in flat if isinstance(end, int))
    return llm, counters, RequestForm(config.vocab_size, arguments["max_model_len"], known)


class _GroupAnswers:
    """Implements `Answers` for requests that were made together."""

    def __init__(self, expected: int) -> None:
        self._left = expected
        self._done: list[tuple[int, Generation | RolloutError]] = []
        self._more = asyncio.Event()

    def put(self, number: int, answer: Generation | RolloutError) -> None:
        """The answer to the request of this number."""
        self._done.append((number, answer))
        self._left -= 1
        self._more.set()

    async def some(self) -> Sequence[tuple[int, Generation | RolloutError]]:
        if not self._done and self._left:
            self._more.clear()
            await self._more.wait()
        done = self._done
        self._done = []
        return done
