"""The tokenizer of a local model folder. `transformers` is imported when one is opened, which takes seconds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from rftd.ops.errors import DataError
from rftd.workers.chat.message import Message


class HfTokenizer:
    """A transformers tokenizer behind our protocol."""

    def __init__(self, inner: Any, *, folder: str, chat_template: str | None, eos_ids: tuple[int, ...]) -> None:
        self._inner = inner
        self._folder = folder
        self._chat_template = chat_template
        self._eos_ids = eos_ids
        # The rollouts of a group share their prompt, and one call costs as much as several drawn tokens.
        self._encoded = lru_cache(maxsize=256)(self._encode)
        self._rendered = lru_cache(maxsize=256)(self._render)

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The tokenizer's own, then those of generation_config.json."""
        return self._eos_ids

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """The ids of a text."""
        return list(self._encoded(text, special))

    def _encode(self, text: str, special: bool) -> tuple[int, ...]:
        return tuple(self._inner.encode(text, add_special_tokens=special))

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of ids, without special tokens and as it was drawn: spaces are not cleaned up."""
        return str(self._inner.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def chat_text(self, messages: Sequence[Message], *, generation_prompt: bool) -> str:
        """The conversation in the template of the experiment, or else of the folder."""
        return self._rendered(tuple(messages), generation_prompt)

    def _render(self, messages: tuple[Message, ...], generation_prompt: bool) -> str:
        if not (self._chat_template or self._inner.chat_template):
            raise DataError(
                "the model has no chat template",
                where=self._folder,
                fix="set model.custom_chat_template, or use simple_workflow with prompt_type: plaintext",
            )
        try:
            text = self._inner.apply_chat_template(
                [msgspec.structs.asdict(message) for message in messages],
                tokenize=False,
                add_generation_prompt=generation_prompt,
                chat_template=self._chat_template,
            )
        except Exception as error:
            raise DataError(
                f"the chat template refuses messages of the roles {[m.role for m in messages]}: {error}",
                where=self._folder,
                fix="correct the messages, or set model.custom_chat_template",
            ) from error
        return str(text)


def open_tokenizer(path: str, *, chat_template: str | None = None, trust_remote_code: bool = False) -> HfTokenizer:
    """The tokenizer of a model folder; reads files, never the network. Raises DataError if there is none."""
    folder = Path(path)
    if not folder.is_dir():
        raise DataError(
            f"model folder {path!r} does not exist",
            where=path,
            fix="rftd reads local folders: download the model and set model.model_path to where it lies",
        )
    # It takes seconds to import; processes that only fold or plan never pay for it.
    from transformers import AutoTokenizer

    try:
        inner = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=trust_remote_code)
    except Exception as error:
        raise DataError(
            f"no tokenizer can be read from the model folder: {type(error).__name__}: {error}",
            where=path,
            fix="the folder needs tokenizer.json and tokenizer_config.json",
        ) from error
    return HfTokenizer(inner, folder=path, chat_template=chat_template, eos_ids=_eos_ids(inner, folder))


def _eos_ids(inner: Any, folder: Path) -> tuple[int, ...]:
    ids: list[int] = [] if inner.eos_token_id is None else [int(inner.eos_token_id)]
    config = folder / "generation_config.json"
    if config.is_file():
        try:
            listed = msgspec.json.decode(config.read_bytes(), type=_GenerationConfig).eos_token_id
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise DataError(f"generation_config.json is malformed: {error}", where=str(config)) from error
        ids.extend([] if listed is None else [listed] if isinstance(listed, int) else listed)
    return tuple(dict.fromkeys(ids))


class _GenerationConfig(msgspec.Struct):
    eos_token_id: int | list[int] | None = None
