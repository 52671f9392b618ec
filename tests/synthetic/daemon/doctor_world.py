"""One machine with a daemon and an experiment file, to be spoiled in one way, for the doctor to find."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from synthetic.daemon.command_line import Served
from synthetic.daemon.experiment_files import config, overlaid
from synthetic.daemon.stranger import Said, stranger_at_work

_ANSWERS = {"response_key": "answer"}


@dataclass
class DoctorWorld:
    """A sound machine; what spoils it is undone with the test."""

    folder: Path
    model: Path
    served: Served
    guarded: Served
    """A daemon whose token is `right`."""
    patch: pytest.MonkeyPatch
    stack: ExitStack

    def put(self, name: str, content: str | bytes = "") -> Path:
        """A file below the data folder."""
        path = self.folder / ".rftd" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        path.chmod(0o644)  # whatever the umask of this process is
        return path

    def experiment(self, rows: list[dict[str, str]] | None = None, **changes: object) -> list[str]:
        """The words that check a file: a sound one, with the changes."""
        rows = [{"question": f"{n}+1=", "answer": str(n + 1)} for n in range(8)] if rows is None else rows
        (self.folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        taskset = {
            "path": str(self.folder / "train.jsonl"),
            "format": {"prompt_key": "question", "response_key": "answer"},
        }
        sound = {
            "checkpoint_root_dir": str(self.folder / "checkpoints"),
            "model": {"model_path": str(self.model), "max_model_len": 512, "max_prompt_tokens": 400},
            "buffer": {"explorer_input": {"taskset": taskset}},
        }
        file = self.folder / "mine.yaml"
        file.write_text(yaml.safe_dump(overlaid(overlaid(config(), sound), changes)))
        return [str(file)]

    def trained_rows(
        self, rows: list[dict[str, str]], algorithm: str = "sft", keys: Mapping[str, str] = _ANSWERS
    ) -> list[str]:
        """The words that check a file which trains on these rows alone, whose answers are under `keys`."""
        words = self.experiment(rows)
        stage = {
            "stage_name": "warmup",
            "mode": "train",
            "algorithm": {"algorithm_type": algorithm},
            "buffer": {
                "train_batch_size": 2,
                "trainer_input": {
                    "experience_buffer": {
                        "name": "warmup",
                        "path": str(self.folder / "train.jsonl"),
                        "format": {"prompt_type": "raw", "prompt_key": "question", **keys},
                    }
                },
            },
        }
        file = Path(words[0])
        file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "stages": [stage]}))
        return words

    def spoiled_model(self, spoil: Callable[[Path], object]) -> list[str]:
        """The words that check a file whose model was spoiled."""
        folder = self.folder / "spoiled"
        shutil.copytree(self.model, folder)
        spoil(folder)
        return self.experiment(model={"model_path": str(folder)})

    def strangers(self, *answers: Said) -> list[str]:
        """The words that ask a program which gives these answers, one after the other."""
        stranger = self.stack.enter_context(stranger_at_work())
        stranger.answers = list(answers)
        return ["--server", stranger.url]

    def listener(self) -> socket.socket:
        """A socket that listens, and answers nobody."""
        return self.stack.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
