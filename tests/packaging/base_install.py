"""Installs a wheel with the base lock into an empty environment, measures it, and runs an experiment there.

    make test-base
    .venv/bin/python -P tests/packaging/base_install.py dist/rftd-0.1.0-py3-none-any.whl

Daemon, client and both workers are processes of that environment, where torch, transformers, tokenizers and matplotlib
are not. It needs a package index or uv's cache. Exits with 1, and the ends of all logs, if anything is not as promised.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
MOST_BYTES: Final = 200 * 10**6
HEAVY: Final = ("torch", "transformers", "tokenizers", "safetensors", "matplotlib", "pyarrow", "datasets")
PATIENCE_S: Final = 240.0
"""Only a failure takes so long: the machine may have much else to do."""
EXPERIMENT: Final = """
name: sums
checkpoint_root_dir: ./checkpoints
algorithm: {algorithm_type: grpo, repeat_times: 4}
model: {model_path: fake, max_model_len: 64, max_prompt_tokens: 32}
buffer:
  batch_size: 4
  total_steps: 5
  explorer_input:
    taskset:
      name: sums
      path: ./train.jsonl
      format: {prompt_type: raw, prompt_key: question, response_key: answer}
      default_workflow_type: simple_workflow
      default_reward_fn_type: exact_match_reward
explorer:
  rollout_model: {engine_type: fake, engine_num: 1}
trainer: {trainer_type: fake, max_idle_steps: 0}
synchronizer: {sync_method: checkpoint, sync_style: fully_async, sync_interval: 1}
"""


class Installed:
    """A new environment in a folder, and what is run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "env" / "bin" / "python"
        (folder / "run").mkdir(mode=0o700)
        # None of the caller's: not his PYTHONPATH, nor a daemon that he has somewhere.
        self.environ = {
            "PATH": os.defpath,
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "XDG_RUNTIME_DIR": str(folder / "run"),
            "XDG_STATE_HOME": str(folder / "state"),
        }

    def install(self, wheel: Path) -> None:
        """Makes the environment of the lock and the wheel alone."""
        uv = [sys.executable, "-m", "uv"]
        into = [*uv, "pip", "install", "-q", "--python", str(self.python)]
        subprocess.run([*uv, "venv", "-q", "--python", sys.executable, str(self.folder / "env")], check=True)
        lock = str(ROOT / "requirements" / "base.txt")
        subprocess.run([*into, "--no-deps", "--require-hashes", "-r", lock], check=True)
        subprocess.run([*into, "--no-deps", str(wheel)], check=True)
        subprocess.run([*uv, "pip", "check", "-q", "--python", str(self.python)], check=True)

    def size_bytes(self) -> int:
        """The bytes of all installed files, with the bytecode that was made so far."""
        (packages,) = (self.folder / "env" / "lib").glob("python3*/site-packages")
        return sum(path.lstat().st_size for path in packages.rglob("*") if not path.is_dir())

    def rftd(self, *arguments: str) -> str:
        """What a command line prints. Raises AssertionError if it fails."""
        done = subprocess.run(
            self._command(*arguments),
            cwd=self.folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, f"rftd {' '.join(arguments)}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    @contextmanager
    def beside(self, name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """A command line that runs while the block does; its output goes to NAME.log."""
        with (self.folder / f"{name}.log").open("wb") as output:
            process = subprocess.Popen(
                self._command(*arguments),
                cwd=self.folder,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _command(self, *arguments: str) -> list[str]:
        return [str(self.folder / "env" / "bin" / "rftd"), *arguments]

    def runs(self, program: str) -> bool:
        """True if a program of Python ends well there."""
        done = subprocess.run([self.python, "-c", program], env=self.environ, capture_output=True, timeout=PATIENCE_S)
        return done.returncode == 0


def wait_for(what: str, there: Callable[[], bool], *running: subprocess.Popen[bytes]) -> None:
    """Returns once it is there; AssertionError if it is not in time, or if one of the processes ends before."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not there():
        assert all(process.poll() is None for process in running), f"a process ended before {what}"
        assert time.monotonic() < deadline_s, f"{what} did not come within {PATIENCE_S:g} s"
        time.sleep(0.1)


def run_an_experiment(env: Installed) -> None:
    """Serves, submits and reads, with workers that somebody else started."""
    folder = env.folder
    rows = (json.dumps({"question": f"{a}+{a % 10}=", "answer": str(a + a % 10)}) for a in range(20))
    (folder / "train.jsonl").write_text("\n".join(rows) + "\n")
    (folder / "exp.yaml").write_text(EXPERIMENT)
    with ExitStack() as stack:
        daemon = stack.enter_context(env.beside("daemon", "serve", "--workers", "external", "--port", "0"))
        wait_for("the daemon's address", (folder / ".rftd" / "endpoint.json").exists, daemon)
        env.rftd("submit", "exp.yaml")
        (socket,) = (folder / "run").rglob("log.sock")
        log = ("--log", f"unix:{socket}")
        running = [stack.enter_context(env.beside(role, "worker", role, *log)) for role in ("explorer", "trainer")]

        def ended() -> bool:
            status = json.loads(env.rftd("get", "sums", "--json"))["experiment"]["summary"]["state"]
            assert status not in ("failed", "cancelled", "rejected"), env.rftd("get", "sums")
            return bool(status == "completed")

        wait_for("the experiment's end", ended, daemon, *running)
        print(env.rftd("get", "sums"))
    print(env.rftd("verify"))


def main() -> None:
    """Exits with 1 if the base install is too large, or does not work."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    wheel: Path = parser.parse_args().wheel.resolve()
    with tempfile.TemporaryDirectory(prefix="rftd-") as name:
        env = Installed(Path(name))
        env.install(wheel)
        print(f"installed: {env.size_bytes() / 1e6:.0f} MB")
        assert not (there := [module for module in HEAVY if env.runs(f"import {module}")]), f"the base has {there}"
        assert env.runs("from rftd.daemon.demo.demo import experiment_text; experiment_text()"), "it lacks its files"
        try:
            run_an_experiment(env)
        except BaseException:
            for log in sorted(env.folder.glob("*.log")):
                print(f"== {log.name}", log.read_text(errors="replace")[-4000:], sep="\n", file=sys.stderr)
            raise
        size_bytes = env.size_bytes()
        print(f"after a run, with bytecode: {size_bytes / 1e6:.0f} MB, of at most {MOST_BYTES / 1e6:.0f} MB")
        assert size_bytes <= MOST_BYTES, "the base install is too large: is a new dependency one of an extra?"


if __name__ == "__main__":
    main()
