"""The tokenizer of a stage: explorers and the trainer must agree on it, so both ask here."""

from __future__ import annotations

from rftd.streams.spec import StageSpec
from rftd.workers.chat.tokenizer import Tokenizer


def stage_tokenizer(stage: StageSpec) -> Tokenizer:
    """The tokenizer of the stage's model folder; bytes for the fake engines. Blocks. Raises DataError."""
    if stage.trainer.engine == "fake":
        from rftd.workers.chat.byte_tokenizer import ByteTokenizer

        return ByteTokenizer()
    from rftd.workers.chat.hf_tokenizer import open_tokenizer

    return open_tokenizer(
        stage.model.path, chat_template=stage.model.chat_template, trust_remote_code=stage.model.trust_remote_code
    )
