"""Copies of tokenizers among the artifacts of an experiment, which keep its texts readable after a model has gone."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rftd.ops import limits
from rftd.storage.files.artifacts import ARTIFACTS, ArtifactStore
from rftd.streams.spec.engines import SERVICE
from rftd.streams.spec.spec import ExperimentSpec, StageSpec

TOKENIZER: Final = "tokenizer.json"
"""The only file needed for decoding; folders of slow tokenizers have none."""


def has_byte_tokens(stage: StageSpec) -> bool:
    """True if the tokens of a stage are bytes: fake engines, and services without a model folder."""
    if stage.rollout.engine == SERVICE:
        return not stage.model.path
    return stage.trainer.engine == "fake"


def copied_tokenizers(spec: ExperimentSpec) -> tuple[str, ...]:
    """Copies the tokenizer.json of each stage, and returns the sha256 of each copy; empty without one. Blocks.

    A file that is missing, unreadable or too large has no copy: text is for people, and training does without.
    """
    store = ArtifactStore(Path(spec.job_dir) / ARTIFACTS)
    by_folder: dict[str, str] = {}
    for stage in spec.stages:
        if stage.model.path and not has_byte_tokens(stage) and stage.model.path not in by_folder:
            by_folder[stage.model.path] = _copy_tokenizer(Path(stage.model.path) / TOKENIZER, store)
    copies = tuple("" if has_byte_tokens(stage) else by_folder.get(stage.model.path, "") for stage in spec.stages)
    return copies if any(copies) else ()


def _copy_tokenizer(file: Path, store: ArtifactStore) -> str:
    """Copies a tokenizer, and returns its sha256; empty for an unreadable or too large file."""
    try:
        if file.stat().st_size > limits.TOKENIZER_SIZE_BYTES:
            return ""
        return store.put(file.read_bytes())
    except OSError:
        return ""
