"""`rftd try`: one task by the model as it is, or recorded rollouts by another reward; nothing is trained."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from rftd.daemon.cli.output.data import emitted
from rftd.daemon.cli.output.quantity import number
from rftd.daemon.cli.output.table import LABEL, labelled
from rftd.daemon.cli.output.terminal import say
from rftd.daemon.cli.settings import Settings, shared_options
from rftd.daemon.http.views.wire import to_wire
from rftd.ops.errors import UsageError

if TYPE_CHECKING:
    from rftd.daemon.http.client.recorded_judging import JudgedRollouts
    from rftd.streams.spec.spec import StageSpec, TasksetSpec
    from rftd.workers.rollout.tried_rollout import TriedCall, TriedRollout


@click.command("try")
@click.argument("target", metavar="FILE|NAME")
@click.option("--task", "row", type=click.IntRange(0), default=0, show_default=True, help="Row of the taskset, from 0.")
@click.option("--reward", metavar="NAME|FILE:NAME", help="Score by this reward, registered or of a Python file.")
@click.option("--reward-args", metavar="JSON", help="Arguments of that reward.")
@click.option("--taskset", metavar="NAME", help="The taskset, if there are several; held-out tasksets included.")
@click.option("-s", "overrides", multiple=True, metavar="KEY=VALUE", help="Set one field of FILE; repeatable.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Another seed draws other answers.")
@click.option("--experience", metavar="ID", help="Judge this recorded rollout of experiment NAME by --reward.")
@click.option("--step", type=click.IntRange(1), help="Judge the rollouts trained in this step of NAME by --reward.")
@click.option("-n", "--limit", type=click.IntRange(1, 100), default=10, show_default=True, help="Rollouts of --step.")
@shared_options
@click.pass_obj
def command(
    settings: Settings,
    target: str,
    row: int,
    reward: str | None,
    reward_args: str | None,
    taskset: str | None,
    overrides: tuple[str, ...],
    seed: int,
    experience: str | None,
    step: int | None,
    limit: int,
) -> None:
    """Run one rollout of one task of FILE by the model as it is, and show everything that happened in it.

    The workflow and the reward run on this machine, without a daemon; nothing is trained and nothing is recorded. Shown
    are each prompt and answer as text and ids, tools and other models, the parts of the reward, the answer that it
    read, and the time. Exit 1 if the rollout fails.

    With --experience or --step, of experiment NAME: what the reward --reward says of recorded rollouts, beside what was
    recorded.
    """
    arguments = _reward_arguments(reward, reward_args)
    if experience is not None or step is not None:
        if reward is None:
            raise UsageError("recorded rollouts need a reward", field="--reward", fix="name one: ./mine.py:short")
        if experience is not None and step is not None:
            raise UsageError("--experience is one rollout, --step several", fix="leave one of them out")
        from rftd.daemon.http.client.client import Client
        from rftd.daemon.http.client.recorded_judging import judged_rollouts

        with Client(settings) as client:
            judged = judged_rollouts(client, target, reward, arguments, experience=experience, step=step, limit=limit)
        if not emitted(to_wire(judged), settings):
            _print_lines(_judgement_lines(judged))
        return
    tried = _run_task(target, row, reward, arguments, taskset, overrides, seed)
    if not emitted(to_wire(tried), settings):
        _print_lines(_rollout_lines(tried))
    if tried.error:
        raise click.exceptions.Exit(1)


def _reward_arguments(reward: str | None, arguments_json: str | None) -> dict[str, Any]:
    """Returns the arguments of `--reward-args`, empty if it is missing. Raises UsageError without `--reward`, and for
    anything but a JSON mapping.
    """
    if arguments_json is None:
        return {}
    if reward is None:
        raise UsageError("--reward-args without --reward", field="--reward-args", fix="name the reward")
    try:
        arguments = json.loads(arguments_json)
    except ValueError as error:
        raise UsageError(f"{arguments_json!r} is no JSON: {error}", field="--reward-args") from None
    if not isinstance(arguments, dict):
        raise UsageError(f"{arguments_json!r} is no mapping", field="--reward-args", fix='write {"weight": 0.5}')
    return arguments


def _run_task(
    file: str,
    row: int,
    reward: str | None,
    arguments: Mapping[str, Any],
    taskset: str | None,
    overrides: tuple[str, ...],
    seed: int,
) -> TriedRollout:
    """Runs one rollout of a task of the file by its model, and returns everything observed."""
    import asyncio
    import tempfile
    from pathlib import Path
    from uuid import UUID

    from rftd.daemon.cli.verbs.arguments import load_experiment, read_experiment
    from rftd.ops.clock import SystemClock
    from rftd.workers.devices.discovery import find_host
    from rftd.workers.rollout.tried import chosen_taskset, tried

    spec = load_experiment(*read_experiment(file), overrides, find_host(), False).spec
    stage, chosen = chosen_taskset(spec.stages, taskset)
    if reward is not None:
        stage, chosen = _with_reward(stage, chosen, reward, arguments)
    with tempfile.TemporaryDirectory(prefix="rftd-try-") as folder:
        work = tried(
            spec, stage, chosen, row, clock=SystemClock(), folder=Path(folder), seed=UUID(int=spec.seed + seed)
        )
        return asyncio.run(work)


def _with_reward(
    stage: StageSpec, taskset: TasksetSpec, reward: str, arguments: Mapping[str, Any]
) -> tuple[StageSpec, TasksetSpec]:
    """Returns stage and taskset with another reward; the text of a Python file goes along as in a submission."""
    from pathlib import Path

    import msgspec

    from rftd.daemon.http.client.judging import source_text
    from rftd.workers.workflows.source import SourceName, check_source, source_name

    source = source_name(reward)
    if source is not None:
        text = source_text(source.file)
        here = SourceName(Path(source.file).name, source.name)
        check_source(here, text, imports=True)
        if stage.sources.get(here.file, text) != text:
            problem = f"there are two files {here.file!r} with different content"
            raise UsageError(problem, field="--reward", fix="rename one of them")
        stage = msgspec.structs.replace(stage, sources={**stage.sources, here.file: text})
        reward = str(here)
    return stage, msgspec.structs.replace(taskset, reward=reward, reward_args=dict(arguments))


def _print_lines(lines: Iterator[str]) -> None:
    """Prints the lines, continued at the width of labels."""
    say("\n".join(lines), indent=LABEL)


def _rollout_lines(tried: TriedRollout) -> Iterator[str]:
    """Yields the lines of a tried rollout for people: task, calls of the model, programs, reward and time."""
    named = f"; reward {tried.reward_name}" if tried.reward_name else ""
    yield labelled("task", f"{tried.taskset}, row {tried.row}")
    yield labelled("workflow", f"{tried.workflow}{named}")
    yield labelled("prompt", tried.prompt)
    if tried.truth:
        yield labelled("truth", tried.truth)
    for count, call in enumerate(tried.calls, start=1):
        yield ""
        yield from _call_lines(count, call)
    if tried.auxiliary or tried.parts:
        yield ""
    for answer in tried.auxiliary:
        yield labelled("asked", f"{answer.model}, {answer.tokens} tokens: {answer.text}")
    for program in tried.parts:
        failed = f", failed: {program.error}" if program.error else ""
        yield labelled("ran", f"{program.name}, {_seconds_text(program.duration_s)}{failed}")
    yield ""
    if tried.error:
        yield labelled("error", tried.error)
        if tried.fix:
            yield labelled("fix", tried.fix)
    else:
        yield from _score_lines(tried)
    yield labelled(
        "time", f"{_seconds_text(tried.duration_s)}, after {_seconds_text(tried.opening_s)} to open the model"
    )


def _call_lines(count: int, call: TriedCall) -> Iterator[str]:
    """Yields the lines of one call of the model: settings, prompt, answer and ids."""
    how = f"temperature {number(call.temperature)}, at most {call.max_tokens} tokens"
    yield labelled(f"call {count}", f"{how}; {_seconds_text(call.duration_s)}")
    yield labelled("seen", call.prompt)
    yield labelled("ids", _ids_text(call.prompt_ids))
    yield labelled("answer", call.answer)
    yield labelled("ids", _ids_text(call.answer_ids))
    if call.logprobs:
        mean = sum(call.logprobs) / len(call.logprobs)
        yield labelled("ended", f"{call.finish}; mean log-probability {number(mean)}")


def _score_lines(tried: TriedRollout) -> Iterator[str]:
    """Yields the lines of reward, extracted answer and trained tokens."""
    parts = ", ".join(f"{name} {number(part)}" for name, part in tried.rewards.items())
    yield labelled("reward", f"{number(tried.reward)}{f'  ({parts})' if parts else ''}")
    if tried.extracted is not None:
        yield labelled("read", tried.extracted)
    steps = f" in {tried.steps} steps" if tried.steps > 1 else ""
    yield labelled("trained", f"{tried.trained_tokens} of {tried.drawn_tokens} drawn tokens{steps}; {tried.finish}")


def _judgement_lines(judged: JudgedRollouts) -> Iterator[str]:
    """Yields the lines of recorded rollouts for people, each with its recorded and its new reward."""
    yield labelled("reward", judged.reward)
    yield labelled("mean", f"{number(judged.judged)}; recorded {number(judged.recorded)}")
    for rollout in judged.items:
        yield ""
        where = "" if rollout.row is None else f", row {rollout.row}"
        yield labelled("rollout", f"{rollout.experience[:8]}{where}")
        yield labelled("prompt", rollout.prompt)
        yield labelled("answer", rollout.response)
        if rollout.truth:
            yield labelled("truth", rollout.truth)
        yield labelled("recorded", f"{number(rollout.recorded)}{_parts_words(rollout.recorded_parts)}")
        new = rollout.error or f"{number(rollout.reward)}{_parts_words(rollout.parts)}"
        yield labelled("now", new)
        if rollout.extracted is not None:
            yield labelled("read", rollout.extracted)
    for note in judged.notes:
        yield labelled("note", note)


def _parts_words(parts: Mapping[str, float]) -> str:
    """Returns the parts of a reward in brackets; empty without parts."""
    shown = ", ".join(f"{name} {number(part)}" for name, part in parts.items())
    return f"  ({shown})" if shown else ""


def _ids_text(ids: list[int]) -> str:
    """Returns token ids separated by blanks."""
    return " ".join(map(str, ids))


def _seconds_text(seconds: float) -> str:
    """Returns a duration in seconds with three decimals."""
    return f"{seconds:.3f} s"
