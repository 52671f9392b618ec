"""`honcho start`: broker, database, daemon, explorer and trainer, started and told to end at the same moment."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest
from synthetic.daemon.scene import EXPERIMENT, SHORT

from rftd.daemon.cli.settings import Settings
from rftd.daemon.config.loading import load_text
from rftd.daemon.http.client.client import Client
from rftd.daemon.http.views import commands, experiments
from rftd.daemon.stack.ports import kept_ports

ROOT = Path(__file__).parents[2]


def wait_ready(url: str, honcho: subprocess.Popen[bytes], output: Path) -> None:
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s and honcho.poll() is None:
        try:
            if httpx.get(f"{url}/readyz", timeout=5.0, trust_env=False).is_success:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise AssertionError(output.read_text())


def run_short_experiment(url: str, folder: Path) -> tuple[str, int]:
    for name in ("train", "eval"):
        lines = (json.dumps({"question": f"{a}+{a % 10}=", "answer": str(a + a % 10)}) for a in range(20))
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    submission = load_text(EXPERIMENT, "test.yaml", overrides=SHORT, environ={}, cwd=folder)
    deadline_s = time.monotonic() + 90
    with Client(Settings(server=url, timeout_s=20.0)) as client:
        receipt = client.send(commands.submit, commands.Submit(config=submission.config), request_id="procfile").value
        while True:
            summary = client.ask(experiments.summary, name=receipt.id, after=receipt.position).value
            if summary.state in ("completed", "failed") or time.monotonic() > deadline_s:
                return summary.state, summary.step
            time.sleep(0.1)


@pytest.mark.e2e
def test_the_whole_production_shape_trains_and_ends_in_good_order(own_servers: Path, tmp_path: Path) -> None:
    names = {"RFTD_KAFKA_PORT": 0, "RFTD_POSTGRES_PORT": 0, "RFTD_PORT": 0}
    ports = kept_ports(tmp_path / "ports.json", names, running=False)
    procfile = tmp_path / "Procfile"
    procfile.write_text(
        (ROOT / "Procfile").read_text().replace(".venv/bin/rftd", f"{sys.executable} -P -m rftd.daemon")
    )
    environment = {**os.environ, "RFTD_DATA": str(own_servers)} | {name: str(port) for name, port in ports.items()}
    output = tmp_path / "honcho.log"
    with output.open("wb") as file:
        honcho = subprocess.Popen(
            [sys.executable, "-P", "-m", "honcho", "-f", str(procfile), "-d", str(tmp_path), "start"],
            stdout=file,
            stderr=file,
            env=environment,
        )
    try:
        url = f"http://127.0.0.1:{ports['RFTD_PORT']}"
        wait_ready(url, honcho, output)
        assert run_short_experiment(url, tmp_path) == ("completed", 6)
        family = psutil.Process(honcho.pid).children(recursive=True)
        honcho.send_signal(signal.SIGTERM)
        honcho.wait(60)
        text = output.read_text()
        ended = dict(re.findall(r"(\w+)\.1 +stopped \(rc=(-?\d+)\)", re.sub(r"\x1b\[[\d;]*m", "", text)))
        assert ended == {"kafka": "0", "postgres": "0", "daemon": "0", "explorer": "0", "trainer": "0"}, text
        assert "Traceback" not in text
        assert not [process for process in family if process.is_running()]
    finally:
        if honcho.poll() is None:
            for process in [psutil.Process(honcho.pid), *psutil.Process(honcho.pid).children(recursive=True)]:
                process.kill()
            honcho.wait(30)
