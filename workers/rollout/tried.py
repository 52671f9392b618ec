"""`tried`: one rollout of one task by the model as it is, with everything that happened in it, recorded nowhere.

The rollout runs as in an explorer: with the same workflow, reward, tokenizer, engine and endpoint.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import Any, Final
from uuid import UUID

import msgspec
import numpy as np

from rftd.ops.clock import Clock
from rftd.ops.errors import ConfigError, RftdError, RolloutTimeoutError
from rftd.ops.tracing import conventions as names
from rftd.ops.tracing.tracer import Tracer, TraceSpan
from rftd.streams.spec.engines import SERVICE
from rftd.streams.spec.spec import ExperimentSpec, StageSpec, TasksetSpec
from rftd.streams.spec.stage_tasks import tasksets_of
from rftd.workers.datasets.stage_tokenizer import stage_tokenizer
from rftd.workers.datasets.task import Task
from rftd.workers.datasets.taskset import Taskset
from rftd.workers.datasets.tokenizer import Tokenizer
from rftd.workers.generation.auxiliary.own_engine import published
from rftd.workers.generation.auxiliary.rollout_models import AuxiliaryModels
from rftd.workers.generation.endpoint.server import ModelEndpoint
from rftd.workers.generation.engine import EngineStats, Generation, GenerationRequest, RolloutEngine, SchemaEngine
from rftd.workers.generation.engine_registry import open_engine
from rftd.workers.rollout.tried_rollout import TriedAuxiliary, TriedCall, TriedPart, TriedRollout
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.rewards.line_process import process_environment
from rftd.workers.workflows.runner import WorkflowRunner
from rftd.workers.workflows.threads import on_own_thread

_ENGINE: Final = "explorer.rollout_model.engine_type"
"""Field named by errors about the engine."""
_TASKSET: Final = "buffer.explorer_input.taskset"
"""Field named by errors about the taskset."""


async def tried(
    experiment: ExperimentSpec,
    stage: StageSpec,
    taskset: TasksetSpec,
    row: int,
    *,
    clock: Clock,
    folder: Path,
    seed: UUID,
) -> TriedRollout:
    """Runs one rollout of a row by the model's own weights; `folder` takes temporary files. A failed rollout is a
    result, too.

    Raises ConfigError and DataError for a model, part or row that cannot be opened.
    """
    began_s = clock.monotonic_s()
    with Taskset.open(taskset) as rows:
        task = rows.task(row)
    experiment = msgspec.structs.replace(experiment, job_dir=str(folder), stages=(stage,))
    spans = _Spans()
    tracer = Tracer(spans, clock=clock, random=SystemRandom(), ratio=1.0)
    tokenizer = await asyncio.to_thread(stage_tokenizer, stage)
    # Before the experiment's own variables, which are for the workflow.
    reward_environ = process_environment(os.environ)
    os.environ.update(stage.rollout.environment_values)
    async with AsyncExitStack() as stack:
        engine = await _opened(experiment, stage, clock, folder, stack)
        seen = SeenEngine(engine, clock)
        endpoint = ModelEndpoint(clock=clock, random_bytes=secrets.token_bytes, tracer=tracer)
        auxiliary = AuxiliaryModels(
            experiment, clock=clock, environ=os.environ, random=SystemRandom(), endpoint=endpoint
        )
        for service in (endpoint.run, auxiliary.run):
            stack.push_async_callback(_ended, asyncio.ensure_future(service()))
        runner = WorkflowRunner(
            taskset,
            model=stage.model,
            engine=seen,
            tokenizer=tokenizer,
            endpoint=endpoint,
            auxiliary=partial(auxiliary.of, stage),
            reward_environ=reward_environ,
            sources=stage.sources,
        )
        opened_s = clock.monotonic_s()
        outcome = await _outcome(runner, task, seed, stage, tracer)
        ended_s = clock.monotonic_s()
    return _rollout(
        taskset,
        task,
        outcome,
        [_call(call, tokenizer) for call in seen.calls],
        spans.parts(),
        ended_s - opened_s,
        opened_s - began_s,
    )


def chosen_taskset(stages: Sequence[StageSpec], name: str | None) -> tuple[StageSpec, TasksetSpec]:
    """Returns the first taskset, or the one of this name, with its stage. Raises ConfigError without one."""
    pairs = [(stage, taskset) for stage in stages for taskset in (*tasksets_of(stage), *stage.evals)]
    readable = [(stage, taskset) for stage, taskset in pairs if taskset.path]
    for stage, taskset in readable:
        if name is None or taskset.name == name:
            return stage, taskset
    names = ", ".join(dict.fromkeys(taskset.name for _, taskset in readable)) or "none"
    raise ConfigError(
        "has no taskset to try" if name is None else f"has no taskset {name!r}",
        field=_TASKSET,
        fix=f"tasksets with a file: {names}",
    )


class SeenEngine:
    """A rollout engine whose requests and answers are noted."""

    def __init__(self, engine: RolloutEngine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self.calls: list[tuple[GenerationRequest, Generation, float]] = []
        """Requests with their answers and durations, in the order of the answers."""

    @property
    def version(self) -> tuple[int, int]:
        """(version, generation) of the weights in use."""
        return self._engine.version

    @property
    def holds_schemas(self) -> bool:
        """True if the engine can constrain a response by a JSON schema."""
        return isinstance(self._engine, SchemaEngine) and self._engine.holds_schemas

    async def generate(self, request: GenerationRequest) -> Generation:
        """Generates and notes the answer; see `RolloutEngine.generate`."""
        began_s = self._clock.monotonic_s()
        generation = await self._engine.generate(request)
        self.calls.append((request, generation, self._clock.monotonic_s() - began_s))
        return generation

    async def load_weights(self, weights: WeightsRef) -> str:
        """Loads weights; see `RolloutEngine.load_weights`."""
        return await self._engine.load_weights(weights)

    def stats(self) -> EngineStats:
        """Returns the engine's counters."""
        return self._engine.stats()

    async def close(self) -> None:
        """Closes the engine."""
        await self._engine.close()


class _Spans:
    """Receives the spans of the rollout."""

    dropped_total = 0

    def __init__(self) -> None:
        self._ended: list[TraceSpan] = []

    def put(self, span: TraceSpan) -> None:
        """Keeps a span."""
        self._ended.append(span)

    def parts(self) -> list[TriedPart]:
        """Returns the parts within the rollout, but for requests to the model itself, in the order of their begins."""
        shown = [
            span
            for span in self._ended
            if span.parent_id and not span.name.startswith((names.MODEL_CALL, names.ROLLOUT, "POST", "GET"))
        ]
        return [
            TriedPart(name=span.name, duration_s=(span.end_ns - span.start_ns) / 1e9, error=span.error)
            for span in sorted(shown, key=lambda span: span.start_ns)
        ]


async def _opened(
    experiment: ExperimentSpec, stage: StageSpec, clock: Clock, folder: Path, stack: AsyncExitStack
) -> RolloutEngine:
    """Returns the stage's engine with the weights of the model's folder."""
    kind = stage.rollout.engine
    if kind == "tinker":
        raise ConfigError("is tinker, whose weights are at the service", field=_ENGINE, fix="try it with torch or vllm")
    engine = await open_engine(experiment, stage, slots=stage.rollout.concurrency, clock=clock)
    stack.push_async_callback(engine.close)
    weights: Any = {} if kind in ("fake", SERVICE) else Path(stage.model.path)
    await engine.load_weights(await asyncio.to_thread(published, weights, folder / "weights"))
    return engine


async def _ended(service: asyncio.Future[None]) -> None:
    service.cancel()
    await asyncio.wait([service])


async def _outcome(
    runner: WorkflowRunner, task: Task, seed: UUID, stage: StageSpec, tracer: Tracer
) -> RolloutResult | RftdError:
    work = partial(runner.run, task, seed)
    timeout_s = stage.rollout.max_timeout_s
    span = tracer.begin(f"{names.ROLLOUT} {task.workflow}", always=True)
    assert span is not None
    try:
        async with asyncio.timeout(timeout_s):
            with span:
                return await (on_own_thread(work) if stage.rollout.threads_each else work())
    except TimeoutError:
        fix = "raise explorer.max_timeout"
        return RolloutTimeoutError(f"no result within {timeout_s:g} s", where=task.where, fix=fix)
    except RftdError as error:
        return error


def _call(call: tuple[GenerationRequest, Generation, float], tokenizer: Tokenizer) -> TriedCall:
    request, generation, duration_s = call
    return TriedCall(
        prompt=tokenizer.decode(list(request.prompt), special=True),
        prompt_ids=list(request.prompt),
        answer=tokenizer.decode(list(generation.tokens), special=True),
        answer_ids=list(generation.tokens),
        logprobs=list(generation.logprobs),
        finish=generation.finish,
        temperature=request.sampling.temperature,
        max_tokens=request.sampling.max_tokens,
        duration_s=duration_s,
    )


def _rollout(
    taskset: TasksetSpec,
    task: Task,
    outcome: RolloutResult | RftdError,
    calls: Sequence[TriedCall],
    parts: Sequence[TriedPart],
    duration_s: float,
    opening_s: float,
) -> TriedRollout:
    finished = outcome if isinstance(outcome, RolloutResult) else None
    failure = outcome if isinstance(outcome, RftdError) else None
    return TriedRollout(
        taskset=taskset.name,
        row=task.row,
        workflow=task.workflow,
        reward_name=task.reward or "",
        prompt=task.prompt,
        truth=task.truth,
        calls=list(calls),
        parts=list(parts),
        auxiliary=[
            TriedAuxiliary(model=turn.model, text=turn.text, tokens=turn.tokens)
            for turn in (finished.auxiliary if finished is not None else ())
        ],
        reward=None if finished is None else finished.reward,
        rewards={} if finished is None else finished.metrics,
        extracted=None if finished is None else finished.extracted,
        finish="" if finished is None else finished.finish,
        steps=0 if finished is None else max(1, len(finished.steps)),
        trained_tokens=0 if finished is None else int(np.sum(finished.loss_mask)),
        drawn_tokens=sum(len(call.answer_ids) for call in calls),
        duration_s=duration_s,
        opening_s=opening_s,
        error="" if failure is None else failure.what,
        fix="" if failure is None else failure.fix or "",
    )
