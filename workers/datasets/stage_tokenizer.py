"""The tokenizer of a stage, opened here for explorers and the trainer alike, so that both agree."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from rftd.ops.errors import DataError
from rftd.ops.extras import TORCH, check_extra
from rftd.streams.spec.engines import SERVICE
from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import ModelSpec, StageSpec
from rftd.workers.datasets.tokenizer import Tokenizer


class Decoder(Protocol):
    """The part of a tokenizer that converts ids to text."""

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Returns the text of ids, without special tokens unless `special` is true."""
        ...


class _FileDecoder:
    """A tokenizer.json, read without transformers, whose import takes seconds."""

    def __init__(self, path: Path) -> None:
        """Opens a tokenizer.json. Raises DataError."""
        check_extra(TORCH, "the tokenizer of a model folder")
        from tokenizers import Tokenizer as Reader

        try:
            self._inner = Reader.from_file(str(path))
        except Exception as error:  # of the library's Rust code, without a class of its own
            raise DataError(f"tokenizer.json cannot be read: {error}", where=str(path)) from error

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Returns the text of ids; see `Decoder.decode`."""
        return str(self._inner.decode(list(tokens), skip_special_tokens=not special))


def stage_decoder(stage: StageSpec) -> Decoder:
    """Returns a decoder of a stage's ids for showing text to people; faster to open than `stage_tokenizer`. Blocks.
    Raises DataError.
    """
    fake = stage.trainer.engine == "fake" and stage.rollout.engine != SERVICE
    file = Path(stage.model.path) / "tokenizer.json"
    return _FileDecoder(file) if stage.model.path and not fake and file.is_file() else stage_tokenizer(stage)


def stage_tokenizer(stage: StageSpec) -> Tokenizer:
    """Returns the tokenizer of the stage's model folder; bytes for the fake engines. Blocks. Raises DataError."""
    return _engine_tokenizer(stage, stage.model.chat_template, _template_variables(stage.model.enable_thinking))


def dataset_tokenizer(stage: StageSpec) -> Tokenizer:
    """Returns the stage's tokenizer with the chat template set in the dataset's section, if any. Blocks. Raises
    DataError.
    """
    form = stage.dataset.format if stage.dataset is not None else Format()
    thinks = stage.model.enable_thinking if form.enable_thinking is None else form.enable_thinking
    return _engine_tokenizer(stage, form.chat_template or stage.model.chat_template, _template_variables(thinks))


def place_template(folder: Path, stage: StageSpec) -> None:
    """Writes the stage's chat template into every model folder below `folder`, unless it is the model's own template.

    Otherwise users of the trained model would prompt it in another format than in training. Raises OSError.
    """
    # Rows of an expert beside rollouts (`mix`) do not decide: the model is prompted as in rollouts.
    rows = stage.dataset if stage.taskset is None else None
    template = (rows.format.chat_template if rows is not None else None) or stage.model.chat_template
    if template is None:
        return
    for described in sorted(folder.rglob("tokenizer_config.json")):
        # Tokenizers prefer this file to a template in the configuration.
        (described.parent / "chat_template.jinja").write_text(template, encoding="utf-8")


def external_tokenizer(model: ModelSpec) -> Tokenizer:
    """Returns the tokenizer for counting a service's tokens: that of the folder named in the file, or else bytes.
    Blocks.
    """
    return (
        _folder_tokenizer(model, model.chat_template, _template_variables(model.enable_thinking))
        if model.path
        else _byte_tokenizer()
    )


def _template_variables(enable_thinking: bool | None) -> dict[str, Any]:
    """Returns the variables of the chat template set in the experiment file."""
    return {} if enable_thinking is None else {"enable_thinking": enable_thinking}


def _engine_tokenizer(stage: StageSpec, chat_template: str | None, template_args: dict[str, Any]) -> Tokenizer:
    """Returns the tokenizer for the stage's engine, with a template and its variables."""
    if stage.rollout.engine == SERVICE:
        return external_tokenizer(stage.model)
    return (
        _byte_tokenizer()
        if stage.trainer.engine == "fake"
        else _folder_tokenizer(stage.model, chat_template, template_args)
    )


def _byte_tokenizer() -> Tokenizer:
    """Returns the tokenizer of bytes, imported late."""
    from rftd.workers.datasets.byte_tokenizer import ByteTokenizer

    return ByteTokenizer()


def _folder_tokenizer(model: ModelSpec, chat_template: str | None, template_args: dict[str, Any]) -> Tokenizer:
    """Returns the tokenizer of the model's folder, with a template and its variables."""
    from rftd.workers.datasets.hf_tokenizer import open_tokenizer

    return open_tokenizer(
        model.path,
        chat_template=chat_template,
        trust_remote_code=model.trust_remote_code,
        template_args=template_args,
    )
