"""The quick start's experiment on real GSM8K rows: two steps of a tiny model through all three processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic.daemon.scene import Scene

from rftd.workers.models.tiny_model import make_tiny_model

ROOT = Path(__file__).parents[2]
GSM8K = ROOT.parent / "shared" / "data" / "gsm8k"


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.skipif(not GSM8K.is_dir(), reason="the GSM8K rows are not beside the repository")
def test_two_steps_of_the_quick_start(scene: Scene) -> None:
    model = make_tiny_model(scene.folder / "model", seed=1)
    name = scene.submit(
        (ROOT / "examples" / "gsm8k.yaml").read_text(),
        "project=quick",
        "name=gsm8k",
        f"checkpoint_root_dir={scene.folder / 'checkpoints'}",
        f"model.model_path={model}",
        "model.max_response_tokens=24",
        "model.max_model_len=1536",
        "buffer.batch_size=2",
        "buffer.total_steps=2",
        f"buffer.explorer_input.taskset.path={GSM8K}",
        f"buffer.explorer_input.eval_tasksets.0.path={GSM8K}",
        "buffer.explorer_input.eval_tasksets.0.limit_rows=16",
        "algorithm.repeat_times=4",
    )
    page = scene.until_ended(name, timeout_s=240.0)
    summary = page.experiment.summary
    assert summary.state == "completed", (summary.code, summary.reason)
    assert summary.step == 2
    assert {each.rows for each in page.evals} == {16}
    assert [each.version for each in page.evals] == [0, 2]
    assert page.experiment.books.planned == 16
    assert scene.verified().clean

    from transformers import AutoModelForCausalLM, AutoTokenizer

    huggingface = Path(page.checkpoints[0].path) / "actor" / "huggingface"
    assert AutoModelForCausalLM.from_pretrained(huggingface).config.model_type == "qwen2"
    assert AutoTokenizer.from_pretrained(huggingface).encode("1+1")
