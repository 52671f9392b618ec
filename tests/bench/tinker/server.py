"""Starts the open Tinker server of skyrl on a CPU, in an environment of its own (requirements/tinker-server.txt).

    python server.py FOLDER MODEL PORT

It serves the model of one folder, by that folder's path, and keeps its checkpoints and its table below FOLDER. Its
engine would be started by `uv run` out of a project; here it is the same interpreter that runs this file.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import uvicorn
from skyrl.tinker import api
from skyrl.tinker.config import EngineConfig, config_to_argv

AT_ONCE = 32
"""Responses that are drawn together, padded to so many: each other number would be compiled for."""


def engine_command(_parent: Any, config: EngineConfig) -> list[str]:
    """The command line of the engine's process."""
    return [sys.executable, "-m", "skyrl.tinker.engine", *config_to_argv(config)]


if __name__ == "__main__":
    folder, model, port = sys.argv[1:]
    Path(folder).mkdir(parents=True, exist_ok=True)
    api._build_uv_run_cmd_engine = engine_command
    api.app.state.engine_config = EngineConfig(
        base_model=model,
        backend="jax",
        backend_config={
            "max_lora_adapters": 8,
            "max_lora_rank": 32,
            "loss_chunk_size": 0,
            "sample_max_num_sequences": AT_ONCE,
        },
        checkpoints_base=f"{folder}/checkpoints",
        database_url=f"sqlite:///{folder}/tinker.db",
    )
    uvicorn.run(api.app, host="127.0.0.1", port=int(port), log_level="warning")
