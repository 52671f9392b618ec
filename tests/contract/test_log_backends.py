"""A third party's backend is one class and one entry point: whatever part of rftd needs a log uses it by its URL."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest
from synthetic.daemon.command_line import Rftd, Said
from synthetic.daemon.scene import EXPERIMENT
from synthetic.docs.package import install_rehearsal_log
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun
from synthetic.until import poll

from rftd.daemon.cli.cli import main
from rftd.daemon.cli.service_options import ServiceOptions
from rftd.daemon.config.loading import load_text
from rftd.daemon.http.client.address import authorization
from rftd.daemon.serve.launching import Launching
from rftd.daemon.serve.log_source import connect_log
from rftd.daemon.serve.service import running
from rftd.ops.clock import SystemClock
from rftd.ops.errors import ConfigError, UsageError
from rftd.ops.ids import SystemIds
from rftd.ops.logs import logger
from rftd.streams.log import topics
from rftd.streams.log.backend import BACKENDS, LogUrl, backend_of, log_url
from rftd.streams.log.log import EventLog

ONE = "rehearsal:one"


@pytest.fixture(autouse=True)
def rehearsal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend of docs/extending.md, installed, with one run in the log `one`."""
    install_rehearsal_log(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RFTD_DATA", raising=False)
    backend_of(LogUrl("rehearsal", ONE)).logs.clear()  # type: ignore[attr-defined]
    drafts = SyntheticRun(Recorder(), name="small").write().recorder.drafts

    async def fill() -> None:
        await (await opened(ONE)).append(drafts)

    asyncio.run(fill())


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Rftd:
    """Runs one command line in this process."""

    def run(*arguments: str) -> Said:
        status = main(list(arguments))
        output = capsys.readouterr()
        return Said(status, output.out, output.err)

    return run


async def opened(text: str) -> EventLog:
    clock = SystemClock()
    return await connect_log(log_url(text), clock=clock, ids=SystemIds(clock))


def test_verbs_without_a_daemon_work_on_it(said: Rftd, tmp_path: Path) -> None:
    report = json.loads(said("verify", "--log", ONE, "--json").out)
    assert [each["name"] for each in report["experiments"]] == ["small"]
    assert report["records"] > 100
    exported = said("export", "small", "--to", str(tmp_path / "small.rftd"), "--log", ONE, "--json")
    assert exported.status == 0, exported.err
    imported = said("import", str(tmp_path / "small.rftd"), "--log", "rehearsal:two", "--json")
    assert imported.status == 0, imported.err
    records = json.loads(exported.out)["records"]
    assert json.loads(imported.out)["appended"] == records
    assert said("rebuild", "--verify", "--log", "rehearsal:two", "--json").status == 0


def test_the_doctor_and_refusals_speak_of_it(said: Rftd) -> None:
    checks = json.loads(said("doctor", "--log", ONE, "--json").out)["checks"]
    (found,) = [each for each in checks if each["check"] == "a rehearsal"]
    assert found["status"] == "ok"
    assert "a rehearsal, one" in found["what"]
    dropped = said("serve", "--log", ONE, "--payloads", "until-ended")
    assert dropped.status == 2
    assert "payloads cannot be dropped on a rehearsal" in dropped.err
    index = said("verify", "--log", ONE, "--index")
    assert index.status == 2
    assert "leave out --index or --log" in index.err
    served = said("serve", "--log", "unix:/run/rftd/log.sock")
    assert served.status == 2
    assert "no daemon can serve on unix:/run/rftd/log.sock" in served.err


@pytest.mark.parametrize("text", ["nowhere:x", "rehearsal", "rehearsal:", "kafka:", ""])
def test_a_url_of_no_backend_is_refused_with_those_that_there_are(text: str) -> None:
    with pytest.raises(UsageError, match="no log at") as refused:
        log_url(text)
    assert refused.value.fix == "give unix:PATH or kafka://HOST:PORT or rehearsal:..."


def test_a_third_party_cannot_replace_one_of_ours() -> None:
    assert BACKENDS.names() == ("unix", "kafka", "rehearsal")
    assert [BACKENDS.builtin(name) for name in BACKENDS.names()] == [True, True, False]
    with pytest.raises(ConfigError, match="unknown stream backend 'nowhere'"):
        backend_of(LogUrl("nowhere", "nowhere:x"))


def names_at(url: str, headers: dict[str, str]) -> list[str]:
    """The experiments that a daemon lists, once there is one: its tables come a little after the log."""
    listed: list[str] = []

    def looked() -> bool:
        answer = httpx.get(f"{url}/v1/experiments", headers=headers, trust_env=False, timeout=20.0).json()
        listed[:] = [each["name"] for each in answer["items"]]
        return bool(listed)

    poll(looked)
    return listed


@pytest.mark.anyio
async def test_a_daemon_serves_on_it(tmp_path: Path) -> None:
    """What is submitted lies in that log, and a second daemon on it knows the experiment."""
    url = backend_of(log_url("rehearsal:served")).checked("rehearsal:served")
    for name in ("train", "eval"):
        (tmp_path / f"{name}.jsonl").write_text('{"question": "1+1=", "answer": "2"}\n' * 8)
    config = load_text(EXPERIMENT, "exp.yaml", environ={}, cwd=tmp_path).config
    clock = SystemClock()
    ids = SystemIds(clock)
    for number in (1, 2):
        nobody = Launching(roles=frozenset())
        options = ServiceOptions(data=tmp_path / str(number), port=0, log_at=url, launching=nobody)
        async with running(options, clock=clock, ids=ids, logger=logger()) as service:
            assert "log on a rehearsal, served" in options.where(service.folder)
            assert service.keyring is not None
            headers = authorization(service.keyring.tokens.owner_token)
            async with httpx.AsyncClient(trust_env=False, timeout=20.0, headers=headers) as http:
                assert (await http.get(f"{service.url}/readyz")).status_code == 200
                if number == 1:
                    taken = await http.post(f"{service.url}/v1/experiments", json={"config": config})
                    assert taken.is_success, taken.text
            known = await asyncio.to_thread(names_at, service.url, headers)
            assert known == ["sums"]
    heads = await (await opened("rehearsal:served")).heads()
    assert any(partition.stream == topics.EXPERIMENTS for partition in heads)
