"""A folder in which the commands of the documents work: a daemon, a dataset, and the README's experiment file."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import httpx
from synthetic.docs.pages import ROOT, block_named, blocks_of
from synthetic.until import PATIENCE_S

from rftd.daemon.cli.cli import VERBS, main, rftd
from rftd.daemon.http.client.client import Client
from rftd.daemon.http.client.host import DaemonHost
from rftd.daemon.http.views import experiments

FAKES = (
    "model.model_path=fake",
    "explorer.rollout_model.engine_type=fake",
    "explorer.rollout_model.extra_engine_args.latency_s=0.02",
    "trainer.trainer_type=fake",
    "trainer.engine_args.step_s=0.04",
    # A fake explorer hardly ever meets the answer of a row.
    "trainer.max_idle_steps=0",
)
"""The tests' changes to the documents' experiments: engines that need no model."""
PARSED_ONLY = frozenset({"serve", "demo"})
"""These run for long, or for ever."""
ADDRESS = "http://127.0.0.1:7070"
SHELL = frozenset({"cp"})


class World:
    """One data folder with its daemon."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = DaemonHost(folder / ".rftd", folder / "daemon.log")
        (folder / "data").mkdir()
        for name, rows in (("train", 40), ("test", 12)):
            lines = (json.dumps({"question": f"{a}+{a % 10}=", "answer": str(a + a % 10)}) for a in range(rows))
            (folder / "data" / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
        (folder / "mine.yaml").write_text(block_named("mine.yaml").text)
        for block in blocks_of(ROOT / "docs" / "from-verl.md", "sh", "yml"):
            assert block.file is not None
            (folder / block.file).write_text(block.text)

    def run(self, line: str) -> str:
        """Runs one command line as a reader would type it; what it printed. Fails if it fails."""
        words = shlex.split(line, comments=True)
        while words and "=" in words[0]:
            words.pop(0)
        if not words:
            return ""
        if words[0] == "rftd":
            return self.rftd(words[1:])
        if words[0] == "curl":
            url = next(word for word in words if word.startswith(ADDRESS)).replace(ADDRESS, self.host.url)
            # What the shell would put there: the file lies in the world's folder.
            token = "-H" in words and (self.folder / ".rftd" / "owner.token").read_text().strip()
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            answer = httpx.get(url, headers=headers, timeout=20.0, trust_env=False)
            assert answer.is_success, (line, answer.text)
            return answer.text
        if words[:2] == ["kill", "-9"]:
            os.kill(self.live_trainer(), signal.SIGKILL)
        elif Path(words[0]).name == "python":
            assert [word for word in words if word.endswith(".py") and (ROOT / word).is_file()], line
        elif words[0] in SHELL:
            self.host.stop()
            subprocess.run(words, cwd=self.folder, check=True)
            self.host.tend()
        else:
            assert words[0] == "source", f"no test knows how to run {line!r}"
        return ""

    def rftd(self, arguments: list[str]) -> str:
        """Runs the command line in this process, with fake engines for what is submitted."""
        if arguments[0] in PARSED_ONLY:
            context = rftd.make_context("rftd", list(arguments))
            command = rftd.get_command(context, arguments[0])
            assert command is not None
            command.make_context(arguments[0], arguments[1:], parent=context)
            return ""
        assert arguments[0] in VERBS or arguments[0].startswith("--data"), arguments
        alone = arguments == ["rebuild"]
        if arguments[0] in ("submit", "sweep") or arguments[:2] in (["config", "check"], ["doctor", "mine.yaml"]):
            arguments = [*arguments, *(word for fake in FAKES for word in ("-s", fake))]
        if alone:
            self.host.stop()
        if arguments[0] == "pause":
            self.live_trainer()
        output = io.StringIO()
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            status = main(arguments)
        if alone:
            self.host.tend()
        assert status == 0, (arguments, output.getvalue())
        return output.getvalue()

    def live_trainer(self) -> int:
        """The process of the trainer that works now."""
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            with Client(self.host.settings, {}) as client:
                for row in client.ask(experiments.listed).value.items:
                    for worker in client.ask(experiments.one, name=row.id).value.workers:
                        if worker.role == "trainer" and worker.state == "live":
                            return worker.pid
            time.sleep(0.02)
        raise AssertionError("no trainer lives")
