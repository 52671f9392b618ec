"""The tokenizer of a stage: explorers and the trainer must agree on it, so both ask here."""

from __future__ import annotations

from typing import Any

from rftd.streams.auxiliary import SERVICE
from rftd.streams.spec import FormatSpec, ModelSpec, StageSpec
from rftd.workers.tasksets.tokenizer import Tokenizer


def stage_tokenizer(stage: StageSpec) -> Tokenizer:
    """The tokenizer of the stage's model folder; bytes for the fake engines. Blocks. Raises DataError."""
    return _tokenizer(stage, stage.model.chat_template, _variables(stage.model.enable_thinking))


def dataset_tokenizer(stage: StageSpec) -> Tokenizer:
    """The stage's tokenizer, with the chat template that the dataset's format names. Blocks. Raises DataError."""
    form = stage.dataset.format if stage.dataset is not None else FormatSpec()
    thinks = stage.model.enable_thinking if form.enable_thinking is None else form.enable_thinking
    return _tokenizer(stage, form.chat_template or stage.model.chat_template, _variables(thinks))


def external_tokenizer(model: ModelSpec) -> Tokenizer:
    """The tokenizer that counts the tokens of a service: that of the folder, if one is named, else bytes. Blocks."""
    return _of_folder(model, model.chat_template, _variables(model.enable_thinking)) if model.path else _bytes()


def _variables(enable_thinking: bool | None) -> dict[str, Any]:
    """Variables of the chat template, as far as the file says them."""
    return {} if enable_thinking is None else {"enable_thinking": enable_thinking}


def _tokenizer(stage: StageSpec, chat_template: str | None, template_args: dict[str, Any]) -> Tokenizer:
    if stage.rollout.engine == SERVICE:
        return external_tokenizer(stage.model)
    return _bytes() if stage.trainer.engine == "fake" else _of_folder(stage.model, chat_template, template_args)


def _bytes() -> Tokenizer:
    from rftd.workers.tasksets.byte_tokenizer import ByteTokenizer

    return ByteTokenizer()


def _of_folder(model: ModelSpec, chat_template: str | None, template_args: dict[str, Any]) -> Tokenizer:
    from rftd.workers.tasksets.hf_tokenizer import open_tokenizer

    return open_tokenizer(
        model.path,
        chat_template=chat_template,
        trust_remote_code=model.trust_remote_code,
        template_args=template_args,
    )
