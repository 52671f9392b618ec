"""The guide's quick start by its names on the hub: GSM8K as Parquet and the model, both from the daemon's cache."""

from __future__ import annotations

from pathlib import Path

import datasets
import pytest
from synthetic.daemon.scene import Scene

from rftd.workers.models.tiny_model import make_tiny_model

ROOT = Path(__file__).parents[2]
COMMIT = "5" * 40
ROWS = [{"question": f"Ann has {n} and gets 2.", "answer": f"{n} + 2 is {n + 2}.\n#### {n + 2}"} for n in range(40)]


def snapshot(cache: Path, repository: str) -> Path:
    """The folder of a repository's only commit, named as `hf download` names it."""
    folder = cache / "hub" / repository
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    made = folder / "snapshots" / COMMIT
    made.mkdir(parents=True)
    return made


@pytest.mark.e2e
@pytest.mark.slow
def test_the_quick_start_runs_by_its_names_on_the_hub(tmp_path: Path) -> None:
    cache = tmp_path / "huggingface"
    rows = snapshot(cache, "datasets--openai--gsm8k") / "main"
    rows.mkdir()
    for split, count in (("train", 40), ("test", 8)):
        datasets.Dataset.from_list(ROWS[:count]).to_parquet(rows / f"{split}-00000-of-00001.parquet")
    make_tiny_model(snapshot(cache, "models--Qwen--Qwen2.5-0.5B-Instruct"), seed=1)
    scene = Scene(tmp_path, environ={"HF_HOME": str(cache)})
    with scene.host:
        name = scene.submit(
            (ROOT / "examples" / "gsm8k.yaml").read_text(),
            "project=quick",
            "name=gsm8k",
            f"checkpoint_root_dir={scene.folder / 'checkpoints'}",
            "model.model_path=Qwen/Qwen2.5-0.5B-Instruct",
            "model.max_response_tokens=24",
            "model.max_model_len=1536",
            "buffer.batch_size=2",
            "buffer.total_steps=2",
            "buffer.explorer_input.taskset.path=openai/gsm8k",
            "buffer.explorer_input.taskset.subset_name=main",
            "buffer.explorer_input.eval_tasksets.0.path=openai/gsm8k",
            "buffer.explorer_input.eval_tasksets.0.subset_name=main",
            "algorithm.repeat_times=4",
        )
        page = scene.until_ended(name, timeout_s=240.0)
        summary = page.experiment.summary
        assert (summary.state, summary.step) == ("completed", 2), (summary.code, summary.reason)
        assert {held_out.rows for held_out in page.evals} == {8}
        assert scene.verified().clean
