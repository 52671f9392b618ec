"""Environments as workflows: what was drawn is trained, an episode is made again, and faults have a reason."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
import psutil
import pytest
from synthetic.models.scripted_engine import SPEC, ScriptedEngine
from synthetic.until import poll
from synthetic.worlds.environment import contract_environment

from rftd.ops.errors import ConfigError, RolloutError
from rftd.streams.spec.spec import SamplingSpec, TasksetSpec
from rftd.workers.datasets.byte_tokenizer import ByteTokenizer
from rftd.workers.datasets.task import make_task
from rftd.workers.workflows.environments.address import environment_address
from rftd.workers.workflows.environments.rows import environment_rows
from rftd.workers.workflows.environments.workflow import EnvironmentWorkflow
from rftd.workers.workflows.registry import WORKFLOWS
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.runner import WorkflowRunner
from rftd.workers.workflows.sandbox.processes import NAME_VARIABLE

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

PROGRAM = Path(contract_environment.__file__)
ICE = "gymnasium://FrozenLake-v1?size=3"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def commanded(folder: Path, mode: str = "sums", **arguments: Any) -> dict[str, Any]:
    """The arguments for the small environment in one of its modes."""
    server = folder / "server"
    server.mkdir(exist_ok=True)
    (server / "sums.py").write_bytes(PROGRAM.read_bytes())
    command = [sys.executable, "-I", "sums.py"]
    of_command = {"environment_command": command, "environment_folder": str(server)}
    return {"environment": f"command://{mode}", **of_command, **arguments}


async def rows_of(arguments: dict[str, Any], limit_rows: int | None = None) -> list[dict[str, Any]]:
    workflow = EnvironmentWorkflow(**arguments)
    return [row async for row in environment_rows(workflow.program, limit_rows)]


def runner_of(arguments: dict[str, Any], engine: ScriptedEngine) -> WorkflowRunner:
    taskset = TasksetSpec(
        name="played",
        path="rows.jsonl",
        workflow="environment_workflow",
        workflow_args=arguments,
        sampling=SamplingSpec(max_tokens=200),
    )
    return WorkflowRunner(taskset, model=SPEC, engine=engine, tokenizer=ByteTokenizer())


async def played(runner: WorkflowRunner, row: dict[str, Any], rollout: int = 1) -> RolloutResult:
    return await runner.run(make_task(row, spec=runner._taskset, row=0), UUID(int=rollout << 100))


def trained(rollout: RolloutResult) -> list[int]:
    ids: list[int] = rollout.tokens[rollout.prompt_tokens :][rollout.loss_mask == 1].tolist()
    return ids


def drawn(engine: ScriptedEngine) -> list[int]:
    return [token for generation in engine.drawn for token in generation.tokens]


def conversation(rollout: RolloutResult) -> str:
    return bytes(int(token) for token in rollout.tokens if token < 256).decode()


async def test_an_episode_trains_the_drawn_ids_and_has_the_reward_of_the_environment(tmp_path: Path) -> None:
    arguments = commanded(tmp_path)
    rows = await rows_of(arguments)
    assert [row["prompt"] for row in rows] == [f"{number}+{number}?" for number in range(40)]
    engine = ScriptedEngine(["It is 3.", "It is 5.", "It is 4."])
    rollout = await played(runner_of(arguments, engine), rows[2])
    assert trained(rollout) == drawn(engine)
    assert (rollout.reward, rollout.metrics, rollout.turns) == (1.0, {"accuracy": 1.0}, 3)
    assert not rollout.steps, "an episode is one sequence"
    assert conversation(rollout).count("No, try again") == 2


async def test_the_number_of_steps_is_bounded_and_the_episode_is_scored_as_it_is(tmp_path: Path) -> None:
    arguments = commanded(tmp_path, "endless", max_steps=4)
    (row,) = await rows_of(arguments, 1)
    rollout = await played(runner_of(arguments, ScriptedEngine(["7"])), row)
    assert (rollout.turns, rollout.reward) == (4, 0.0)


async def test_a_rollout_made_again_is_equal_also_by_a_new_server(tmp_path: Path) -> None:
    rows = await rows_of({"environment": ICE})
    replies = ["right", "down", "down", "I go right"]
    results = []
    for rollout in (1, 1, 2):  # each runner has a server of its own
        results.append(await played(runner_of({"environment": ICE}, ScriptedEngine(replies)), rows[0], rollout))
    first, again, other = results
    assert first.tokens.tobytes() == again.tokens.tobytes() != other.tokens.tobytes(), "the ice is slippery"
    assert first.metrics.keys() == {"return", "illegal_actions"}
    assert conversation(first).count("[") > 1, "the player's cell is marked"


@pytest.mark.parametrize(
    ("name", "replies", "observation"),
    [
        ("FrozenLake-v1?is_slippery=false", ["down"], "[F]HFH"),
        ("Blackjack-v1", ["stick"], "The dealer shows:"),
        ("Taxi-v4", ["I cannot tell", "north"], "That names no action."),
    ],
)
async def test_gymnasium_environments_are_played_as_text(name: str, replies: list[str], observation: str) -> None:
    arguments = {"environment": f"gymnasium://{name}{'&' if '?' in name else '?'}size=2", "max_steps": 2}
    rows = await rows_of(arguments)
    assert len(rows) == 2
    rollout = await played(runner_of(arguments, ScriptedEngine(replies)), rows[1])
    assert observation in conversation(rollout)


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("hangs", "did not answer /step within 1 s"),
        ("dies", "broke off at /step"),
        ("floods", "more than 4194304 bytes"),
        ("nan", "answered /score with status 200 and no such object"),
        ("text", "no such object: Expected `float`"),
        ("inf", "reward 1e\\+31"),
        ("changes", "changed its dataset"),
    ],
)
async def test_a_faulty_environment_fails_its_rollout_with_a_reason(tmp_path: Path, mode: str, reason: str) -> None:
    arguments = commanded(tmp_path, mode, step_s=1.0 if mode == "hangs" else 60.0)
    (row,) = await rows_of(arguments, 1)
    runner = runner_of(arguments, ScriptedEngine(["7"]))
    for _ in range(2):  # after its end or its stop, the server begins again
        with pytest.raises(RolloutError, match=reason) as caught:
            await played(runner, row)
        assert caught.value.where and "row 0" in caught.value.where


@pytest.mark.parametrize(
    ("mode", "reason"),
    [("broken", "(?s)exit code 1.*no licence found"), ("mute", "did not listen within 1 s")],
)
async def test_a_server_that_does_not_start_says_why(tmp_path: Path, mode: str, reason: str) -> None:
    with pytest.raises(RolloutError, match=reason):
        await rows_of(commanded(tmp_path, mode, start_s=1.0 if mode == "mute" else 60.0))


async def test_a_row_that_the_environment_no_longer_has_fails(tmp_path: Path) -> None:
    rows = await rows_of({"environment": ICE})
    changed = {**rows[0], "prompt": rows[0]["prompt"] + " "}
    with pytest.raises(RolloutError, match="the environment changed its dataset"):
        await played(runner_of({"environment": ICE}, ScriptedEngine(["up"])), changed)


async def test_a_package_that_is_missing_is_named_with_its_extra() -> None:
    with pytest.raises(RolloutError, match="No module named") as caught:
        await rows_of({"environment": "openenv://a:B?action=a:C"})
    assert "?python=" in (caught.value.fix or "")


def living(folder: Path) -> list[psutil.Process]:
    """Processes of sandboxes below a folder of temporary files."""
    names = {path.name for path in folder.glob("rftd-sandbox-*/run-*")}
    processes = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(NAME_VARIABLE) in names:
                processes.append(process)
        except psutil.Error:
            continue
    return processes


Start: TypeAlias = Callable[[], Awaitable[tuple[WorkflowRunner, ScriptedEngine, Any]]]


@pytest.fixture
async def playing(temporary: Path) -> AsyncIterator[Start]:
    """A rollout of slippery ice whose model is held."""
    running: list[asyncio.Future[Any]] = []

    async def start() -> tuple[WorkflowRunner, ScriptedEngine, Any]:
        rows = await rows_of({"environment": ICE})
        poll(lambda: not living(temporary))
        engine = ScriptedEngine(["right"], hold=True)
        runner = runner_of({"environment": ICE, "max_steps": 3}, engine)
        rollout = asyncio.ensure_future(played(runner, rows[0]))
        running.append(rollout)
        await engine.until(lambda engine: engine.running == 1)
        return runner, engine, rollout

    yield start
    for rollout in running:
        rollout.cancel()
    await asyncio.wait(running)


async def test_a_cancelled_rollout_closes_its_episode_and_no_other(playing: Start, temporary: Path) -> None:
    _, _, rollout = await playing()
    poll(lambda: len(living(temporary)) == 2)  # the server, and the process of the session
    rollout.cancel()
    with pytest.raises(asyncio.CancelledError):
        await rollout
    poll(lambda: len(living(temporary)) == 1)


async def test_nothing_of_an_environment_is_there_after_the_use_of_its_workflow(
    playing: Start, temporary: Path
) -> None:
    _, engine, rollout = await playing()
    engine.go.set()
    await rollout
    del rollout, engine, _
    gc.collect()
    poll(lambda: not living(temporary) and not list(temporary.glob("rftd-sandbox-*/run-*")))


async def test_a_killed_server_fails_its_rollouts_and_the_next_attempt_is_equal(
    playing: Start, temporary: Path
) -> None:
    runner, engine, rollout = await playing()
    for process in living(temporary):
        with suppress(psutil.NoSuchProcess):  # it ends with its parent, if that one was killed first
            process.send_signal(signal.SIGKILL)
    engine.go.set()
    with pytest.raises(RolloutError, match="broke off at /step"):
        await rollout
    rows = await rows_of({"environment": ICE})
    poll(lambda: not living(temporary))
    again = await played(runner, rows[0])
    fresh = await played(runner_of({"environment": ICE, "max_steps": 3}, ScriptedEngine(["right"])), rows[0])
    assert again.tokens.tobytes() == fresh.tokens.tobytes()
    assert again.reward == fresh.reward


async def test_a_link_in_place_of_the_socket_is_not_followed(tmp_path: Path) -> None:
    program = "import os, time; os.symlink('/etc', os.environ['RFTD_ENVIRONMENT_SOCKET']); time.sleep(60)"
    command = [sys.executable, "-Ic", program]
    arguments = {"environment": "command://link", "environment_command": command, "start_s": 1.0}
    with pytest.raises(RolloutError, match="did not listen"):
        await rows_of(arguments)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("gymnasium://", "is not the address"),
        ("gymnasium:FrozenLake-v1", "is not the address"),
        ("atari://Pong", "is not the address"),
        ("gymnasium://A?b", "no KEY=VALUE"),
        ("gymnasium://A?python=bin/python", "no absolute path"),
        ("gymnasium://A%00", "NUL"),
        ("gymnasium://A#b", "is not the address"),
    ],
)
def test_an_address_that_is_none_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        environment_address(text)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({}, "environment"),
        ({"environment": "command://sums"}, "environment_command"),
        ({"environment": ICE, "environment_command": ["a"]}, "environment_command"),
        ({"environment": ICE, "isolation": "docker"}, "isolation"),
        ({"environment": ICE, "environment_folder": "/no/such/folder"}, "environment_folder"),
        ({"environment": ICE, "max_steps": 0}, "max_steps"),
        ({"environment": ICE, "step_s": 0}, "step_s"),
    ],
)
def test_arguments_without_meaning_are_refused(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        WORKFLOWS.check_arguments("environment_workflow", arguments)
    assert caught.value.field == field or field in caught.value.what


def test_the_line_for_allow_commands_has_python_kind_name_and_arguments() -> None:
    address = environment_address("verifiers://my-set?size=5&python=/srv/v/bin/python&a=b%20c")
    assert address.line() == "/srv/v/bin/python verifiers my-set 'a=b c' size=5"
    assert environment_address("gymnasium://A").line() == "python gymnasium A"
    assert environment_address("command://a?n=1").line(["node", "env.mjs"]) == "node env.mjs a n=1"
    assert os.path.isabs(environment_address("gymnasium://A").words()[0])
    assert msgspec.json.decode(msgspec.json.encode(address))["python"] == "/srv/v/bin/python"
