"""Published weights are looked at by `rftd verify --files` until their experiment ends, and go with its end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rftd.daemon.cli.verbs.verify import files_of
from rftd.daemon.run.supervisor.run import Run
from rftd.ops.logs import logger
from rftd.storage.portable.files import Chosen, add_files
from rftd.streams.folds.spine import Status
from rftd.streams.portable.container import ArchiveWriter
from rftd.streams.sqlite.log import SqliteLog
from rftd.streams.verify.checker import verify
from rftd.streams.verify.outside import Outside, SeenOutside


@pytest.mark.anyio
async def test_they_are_looked_at_until_the_end_also_if_that_comes_meanwhile(
    tmp_path: Path, clock, ids, fake_world
) -> None:
    log = await SqliteLog.open(tmp_path / "log")
    experiment = await fake_world.submitted(log, fake_world.spec(tmp_path), clock, ids)
    executor = fake_world.executor(log, clock, ids)

    def run_of() -> Run:
        return Run(log, experiment, executor, owner=ids.new(), clock=clock, ids=ids, logger=logger())

    run = run_of()
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(run.drive())
        while run.state.spine.version < 5:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)
        await run.drain()
    assert run.state.spine.status is Status.RUNNING
    assert (await verify(log, look=files_of)).clean
    weights = run.state.weights
    event = next(each for key, each in reversed(weights.published.items()) if key not in weights.retired)
    file = Path(event.path) / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"x")
    [finding] = (await verify(log, look=files_of)).findings
    assert finding.rule == "files-are-whole"
    assert str(file.parent) in finding.what
    file.write_bytes(content)

    loop = asyncio.get_running_loop()

    def ends_meanwhile(outside: Outside) -> SeenOutside:
        asyncio.run_coroutine_threadsafe(run_of().drive(), loop).result(60)
        seen = files_of(outside)
        assert str(file.parent) in {each.path for each in seen.missing}
        return seen

    report = await verify(log, look=ends_meanwhile)
    assert report.clean, report.findings
    assert list(file.parents[1].glob("*")) == []
    assert (await verify(log, look=files_of)).clean
    await log.close()


def test_weights_that_go_while_they_are_exported_are_left_out(tmp_path: Path) -> None:
    there, gone = (Chosen(kind="weights", folder=tmp_path, path=name) for name in ("there", "gone"))
    (tmp_path / "there").write_bytes(b"weights")
    notes: list[str] = []
    with ArchiveWriter(tmp_path / "x.rftd") as archive:
        parts = add_files(archive, [gone, there], notes)
        assert [(part.path, part.member.name) for part in parts] == [("there", "files/000000")]
        assert notes == [f"{tmp_path / 'gone'} left out: it was removed meanwhile"]
        checkpoint = Chosen(kind="checkpoint", folder=tmp_path, path="gone")
        with pytest.raises(FileNotFoundError):
            add_files(archive, [checkpoint], notes)
