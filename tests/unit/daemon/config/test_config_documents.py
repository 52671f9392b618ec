"""The YAML of upstream's documents loads as it stands, but for what is listed here with its reason."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from synthetic.daemon.document_blocks import DocumentBlock, blocks_of

from rftd.daemon.config.issue import ConfigErrors
from rftd.daemon.config.loading import Submission, load_text

GOLDEN: Final = Path(__file__).parents[4] / "tests" / "golden" / "config" / "documents"
FOLDER: Final = "RFTD_UPSTREAM_DOCUMENTS"
"""The variable that names a folder with the pages themselves, which are not ours to keep."""
PAGES: Final = Path(os.environ.get(FOLDER) or Path(__file__).parents[5] / "shared" / "seeds")
"""That folder, or the one beside this checkout."""
SMALL: Final[dict[str, Any]] = {
    "checkpoint_root_dir": "/c",
    "algorithm": {"algorithm_type": "grpo", "repeat_times": 4, "kl_loss_fn": "none"},
    "model": {"model_path": "/m", "max_prompt_tokens": 512, "max_response_tokens": 512},
    "buffer": {"batch_size": 2, "total_steps": 6, "explorer_input": {"taskset": {"path": "/t.jsonl"}}},
}
"""What a fragment of a file is laid over."""
ENVIRON: Final = {
    "MODEL_PATH": "/models/m",
    "TRINITY_TASKSET_PATH": "/data/tasks",
    "TRINITY_SFT_DATASET_PATH": "/data/aux",
    "TRINITY_DATASET_PATH": "/data/sft",
    "HOME": "/home/me",
}
NOT_OURS: Final = "unknown reward"
RECIPE: Final = "examples/grpo_gsm8k_experience_pipeline/dj_scoring_exp.yaml"
"""A file of Data-Juicer that a page names without showing it."""
EXCEPTIONS: Final[Mapping[tuple[str, int], Mapping[str, str]]] = {
    ("Configuration Guide", 123): {"monitor.monitor_args.api_key": "a secret must not be written into the file"},
    ("Configuration Guide", 505): {
        # The page has the service in a block of its own.
        "data_processor.task_pipeline.operators[0].name": "unknown task operator",
        "service.data_juicer": "is not set, but an operator needs it",
    },
    # The page means them to be filled in.
    ("Quick Start", 26): {"project": "is typed in commands", "name": "is typed in commands"},
    # A reward of the reader's own, which the page tells to write.
    ("Align configuration with veRL", 186): {"buffer.explorer_input.default_reward_fn_type": NOT_OURS},
}
"""Page and line of each block that does not load, with every field that is refused, and why."""


def laid(below: Any, above: Any) -> Any:
    if isinstance(below, dict) and isinstance(above, dict):
        return {**below, **{key: laid(below.get(key), value) for key, value in above.items()}}
    return below if above is None else above


def load(text: str, folder: Path) -> Submission:
    """The block over a small experiment; what is veRL's own is read as the trainer's file."""
    given = yaml.safe_load(text)
    if "actor_rollout_ref" in given:
        (folder / "trainer.yaml").write_text(text)
        given = {"trainer": {"trainer_type": "verl", "trainer_config_path": str(folder / "trainer.yaml")}}
    small = deepcopy(SMALL)
    if ((given.get("buffer") or {}).get("explorer_input") or {}).get("tasksets"):
        del small["buffer"]["explorer_input"]["taskset"]
    return load_text(yaml.safe_dump(laid(small, given)), "page.yaml", environ=ENVIRON, cwd=folder)


def blocks() -> Iterator[tuple[str, DocumentBlock]]:
    for page in sorted(PAGES.glob("*.txt")):
        text = page.read_text()
        title = text.partition("#")[0].strip()
        for block in blocks_of(text):
            yield title, block


@pytest.mark.skipif(
    not PAGES.is_dir(), reason=f"upstream's pages are not beside this checkout, nor does {FOLDER} name them"
)
def test_every_block_of_the_pages_loads_but_for_those_with_a_reason(tmp_path: Path) -> None:
    refused: dict[tuple[str, int], dict[str, str]] = {}
    found = list(blocks())
    (tmp_path / RECIPE).parent.mkdir(parents=True)
    (tmp_path / RECIPE).write_text("process: [{llm_quality_score_filter: {min_score: 0.0}}]\n")
    for title, block in found:
        try:
            # The page's own slip: "`plaintext`", and a backtick begins no word of YAML.
            load(block.text.replace("`plaintext`", "plaintext"), tmp_path)
        except ConfigErrors as errors:
            refused[title, block.line] = {error.field or "": error.what for error in errors.errors}
    assert len(found) > 25
    assert {place: set(fields) for place, fields in refused.items()} == {
        place: set(fields) for place, fields in EXCEPTIONS.items()
    }
    for place, fields in EXCEPTIONS.items():
        for field, why in fields.items():
            assert why in refused[place][field], (place, field)


def test_the_page_of_tinker_runs_as_it_stands(tmp_path: Path) -> None:
    (stage,) = load((GOLDEN / "tinker.yaml").read_text(), tmp_path).spec.stages
    assert (stage.trainer.engine, stage.rollout.engine) == ("tinker", "tinker")
    assert (stage.batch_size, stage.train_batch_size, stage.total_steps) == (96, 768, 6)


def test_the_pages_adapter_is_trained_by_verl_and_by_torch(tmp_path: Path) -> None:
    text = (GOLDEN / "lora.yaml").read_text()
    for engine in ("verl", "torch"):
        written = text.replace("trainer_type: verl", f"trainer_type: {engine}")
        (stage,) = load(written, tmp_path).spec.stages
        assert stage.trainer.engine == engine
        assert stage.model.lora is not None
        assert stage.model.lora.rank == 32


def test_the_trainers_own_file_refers_to_itself(tmp_path: Path) -> None:
    submission = load((GOLDEN / "verl_trainer.yaml").read_text(), tmp_path)
    critic = submission.config["trainer"]["trainer_config"]["critic"]
    assert (critic["ppo_epochs"], critic["use_dynamic_bsz"], critic["forward_max_token_len_per_gpu"]) == (
        1,
        True,
        32768,
    )
    assert submission.spec.stages[0].trainer.engine == "verl"


def test_blocks_of_a_page_get_their_depth_back() -> None:
    deep, flat = blocks_of((GOLDEN / "page.txt").read_text())
    assert yaml.safe_load(deep.text) == {
        "buffer": {"batch_size": 32, "explorer_input": {"taskset": None, "eval_tasksets": None}}
    }
    tree = yaml.safe_load(flat.text)
    first, second = tree["buffer"]["explorer_input"]["tasksets"]
    assert (first, second["rollout_args"]) == (
        {"name": "one", "format": {"prompt_key": "question"}},
        {"temperature": 1.0},
    )
    assert tree["buffer"]["explorer_input"]["eval_tasksets"] == [{"name": "three"}]
    config = tree["trainer"]["trainer_config"]
    assert set(config) == {"actor_rollout_ref", "critic", "trainer"}
    assert set(tree) == {"buffer", "explorer", "trainer", "monitor"}
