"""Well-formed records of a stranger on each topic: a run may end, and nothing outside of its folder is touched."""

from __future__ import annotations

import asyncio
import hashlib
import re
from pathlib import Path

import pytest
from synthetic.log.forger import Forger

from rftd.daemon.cli.output.failure import leaves
from rftd.ops.errors import RftdError
from rftd.streams.folds.spine import Status
from rftd.streams.log import topics
from rftd.streams.log.log import EventLog
from rftd.streams.spec.spec import TrainerSpec

STREAMS = sorted({partition.stream for partition in topics.EVENTS} | {topics.HEARTBEATS})
BUG = re.compile(r"\b(Key|Index|Type|Attribute|Assertion|Value|ZeroDivision|Overflow|Recursion)Error\b|RFTD-BUG")


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("usurps", [False, True], ids=["plays", "usurps"])
@pytest.mark.parametrize("stream", STREAMS)
async def test_a_forger_on_a_topic_reaches_nothing_outside_the_experiment(
    tmp_path: Path, log: EventLog, clock, ids, fake_world, stream: str, usurps: bool
) -> None:
    victim = tmp_path / "victim"
    for name in ("global_step_1", "v1-g0"):
        (victim / name).mkdir(parents=True)
        (victim / name / "canary").write_text("canary")
    asked: list[str] = []

    async def told(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(stream)
        writer.close()

    listener = await asyncio.start_server(told, "127.0.0.1", 0)
    address = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    executor = fake_world.executor(log, clock, ids)
    # Few versions and checkpoints are kept, so that forged ones come to be removed.
    trainer = TrainerSpec(engine="fake", engine_args={"step_s": 0.15}, save_interval=2, max_checkpoints_to_keep=1)
    spec = fake_world.spec(tmp_path, total_steps=30, trainer=trainer)
    run = await fake_world.run(log, spec, clock, ids, executor)
    experiment = run.state.experiment
    forger = Forger(log, stream, experiment, victim, address, usurps=usurps, clock=clock, ids=ids)
    copies: dict[Path, str] = {}

    async def forge() -> None:
        while True:
            await forger.strike()
            copies.update({path: _digest(path) for path in victim.rglob("*") if path.is_file() and path not in copies})
            await clock.sleep(0.3)

    forging = asyncio.ensure_future(forge())
    try:
        async with asyncio.timeout(8):
            await run.drive()
    except TimeoutError:
        pass  # it waits for something that the forger has taken away; a person sees for what
    except (RftdError, ExceptionGroup) as error:
        assert all(isinstance(leaf, RftdError) for leaf in leaves(error)), error
    finally:
        forging.cancel()
        await asyncio.gather(forging, return_exceptions=True)
        for handle in executor.handles:
            handle.kill()
        await asyncio.gather(*(handle.task for handle in executor.handles), return_exceptions=True)
        listener.close()
    assert forger.written
    assert not asked
    assert {path: _digest(path) for path in copies} == copies
    assert not BUG.search(run.state.spine.reason), run.state.spine.reason
    if run.state.spine.status is Status.FAILED:
        assert run.state.spine.code, "it says why"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "gone"
