"""Starts the open Tinker server of skyrl on a CPU, in an environment of its own (requirements/tinker-server.txt).

    python server.py FOLDER MODEL PORT [--record FILE]

It serves the model of one folder, by that folder's path, and keeps its checkpoints and its table below FOLDER. Its
engine would be started by `uv run` out of a project; here it is the same interpreter that runs this file. With --record
each request and its answer is a line of FILE.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import uvicorn
from recorder import Recorder
from skyrl.tinker import api
from skyrl.tinker.config import EngineConfig, config_to_argv

AT_ONCE = 32
"""Responses that are drawn together, padded to so many: each other number would be compiled for."""


def engine_command(_parent: Any, config: EngineConfig) -> list[str]:
    """The command line of the engine's process."""
    return [sys.executable, "-m", "skyrl.tinker.engine", *config_to_argv(config)]


TRY_AGAIN_S = 20
"""How long a request for a result is held before it is told to come again: below the client's own 45 s."""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("model")
    parser.add_argument("port", type=int)
    parser.add_argument("--record", type=Path)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    api._build_uv_run_cmd_engine = engine_command
    api.RETRIEVE_FUTURE_TIMEOUT_SECONDS = TRY_AGAIN_S
    api.app.state.engine_config = EngineConfig(
        base_model=given.model,
        backend="jax",
        backend_config={
            "max_lora_adapters": 8,
            "max_lora_rank": 32,
            "loss_chunk_size": 0,
            "sample_max_num_sequences": AT_ONCE,
        },
        checkpoints_base=f"{given.folder}/checkpoints",
        database_url=f"sqlite:///{given.folder}/tinker.db",
    )
    app = api.app if given.record is None else Recorder(api.app, given.record)
    uvicorn.run(app, host="127.0.0.1", port=given.port, log_level="warning")
