"""The tokenizer of a local model folder. The first opening imports `transformers`, which takes seconds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec

from rftd.ops.errors import DataError
from rftd.ops.extras import TORCH, check_extra
from rftd.workers.datasets.message import Message
from rftd.workers.datasets.template_bound import bounded
from rftd.workers.datasets.tokenizer import no_template
from rftd.workers.devices.device_memory import number_in, settings_of
from rftd.workers.models.model_folder import generation_ends, has_tokenizer, has_tokenizer_code

GENERATION: Final = re.compile(r"\{%-?\s*generation\s*-?%\}")
"""Pattern of the mark that begins the assistant's text in a chat template, `{% generation %}`."""
CACHED: Final = 1024
"""Maximum number of cached texts of each kind: a dataset of up to as many rows is encoded once."""
_ANY_TEXT: Final = "a 1"
"""Text whose encoding shows the ids added before a text."""
MODEL_FIELD: Final = "model.model_path"
"""Field of an error about a token without an embedding in the model."""
_MATCHING: Final = "take the tokenizer that the model was trained with, or add rows to its embeddings"
"""Fix for a token without an embedding."""
_FILES: Final = "the folder needs tokenizer.json and tokenizer_config.json"
"""Fix for a folder without a tokenizer."""
_OWN_CODE_FIX: Final = (
    "write model.trust_remote_code: true if the tokenizer's own code is to be run, or use a folder with tokenizer.json"
)
"""Fix for a tokenizer with code of its own."""
SHORT_TOKENS: Final = 16
"""Maximum tokens of a cached answer: short answers recur, and decoding one costs as much as sampling it."""


class HfTokenizer:
    """A transformers tokenizer behind the `Tokenizer` protocol, with caches for recurring texts."""

    def __init__(
        self,
        inner: Any,
        *,
        folder: str,
        chat_template: str | None,
        eos_ids: tuple[int, ...],
        vocabulary_tokens: int = 0,
        template_args: Mapping[str, Any] | None = None,
    ) -> None:
        """`inner` is the transformers tokenizer; `vocabulary_tokens` is the number of embeddings, 0 if unknown."""
        self._inner = inner
        self._folder = folder
        self._chat_template = chat_template
        self._template_args = dict(template_args or {})
        """Variables of the chat template."""
        self._read_eos_ids = eos_ids
        self._vocabulary = vocabulary_tokens
        """Number of embeddings of the model; 0 if unknown."""
        self._beginning_ids = _beginning_ids(inner)
        """Ids added before a text."""
        # The rollouts of a group share their prompt, and one call costs as much as several sampled tokens.
        self._encoded = lru_cache(maxsize=CACHED)(self._encode)
        self._rendered = lru_cache(maxsize=CACHED)(self._render)
        """Cached function rendering a conversation; keeps the last `CACHED` results."""
        self._decoded = lru_cache(maxsize=CACHED)(self._decode)
        """Cached function decoding few ids; keeps the last `CACHED` results."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Returns the tokenizer's own end of sequence, then the ends of generation_config.json."""
        return self._read_eos_ids

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Returns the ids of a text as a new list, with the model's beginning-of-sequence ids if `special`."""
        # A list of the caller's own: the cache holds an immutable tuple.
        return list(self._encoded(text, special))

    def _encode(self, text: str, special: bool) -> tuple[int, ...]:
        """Returns the ids of a text. Raises DataError for a token without an embedding."""
        ids = tuple(self._inner.encode(text, add_special_tokens=False))
        if self._vocabulary and max(ids, default=0) >= self._vocabulary:
            self._refuse_token(max(ids))
        beginning = self._beginning_ids if special else ()
        # A rendered text already contains its beginning.
        return ids if ids[: len(beginning)] == beginning else (*beginning, *ids)

    def _refuse_token(self, token: int) -> NoReturn:
        """Raises DataError: a tokenizer may know more tokens than the model, as long as no text has one of them."""
        raise DataError(
            f"a text has the token {self.decode([token], special=True)!r}, number {token}, and the model has "
            f"{self._vocabulary} tokens, 0 to {self._vocabulary - 1}",
            where=self._folder,
            field=MODEL_FIELD,
            fix=_MATCHING,
        )

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Returns the text of sampled ids, with spaces unchanged; special tokens only if `special`."""
        if special:
            return str(self._inner.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False))
        # Long answers never recur; caching them would fill the cache without a hit.
        return self._decoded(tuple(tokens)) if len(tokens) <= SHORT_TOKENS else self._decode(tokens)

    def _decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of ids without special tokens."""
        return str(self._inner.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def chat_text(self, messages: Sequence[Message], *, generation_prompt: bool, tools: str = "") -> str:
        """Returns the conversation rendered by the experiment's chat template, or by the model folder's without one."""
        return self._rendered(tuple(messages), generation_prompt, tools)

    def _render(self, messages: tuple[Message, ...], generation_prompt: bool, tools: str) -> str:
        """Returns the conversation in the chat template. Raises DataError for an error of the template."""
        with self._template_errors(messages):
            text = self._inner.apply_chat_template(
                [message.as_dict() for message in messages],
                tools=msgspec.json.decode(tools) if tools else None,
                tokenize=False,
                add_generation_prompt=generation_prompt,
                chat_template=self._chat_template,
                **self._template_args,
            )
        return str(text)

    def marked_text(self, messages: Sequence[Message], *, tools: str = "") -> tuple[tuple[str, bool], ...] | None:
        """Returns the rendered conversation in pieces, True for the assistant's; None if the template has no `{%
        generation %}` marks.
        """
        from transformers.utils.chat_template_utils import render_jinja_template

        listed = msgspec.json.decode(tools) if tools else None
        with self._template_errors(messages):
            template = self._inner.get_chat_template(self._chat_template, listed)
            if not GENERATION.search(template):
                return None
            # The function below apply_chat_template: the latter gives ids, and marks on them, not the pieces of the
            # text.
            rendered: Any = render_jinja_template(  # annotated as text, which it is not
                conversations=[[message.as_dict() for message in messages]],
                tools=listed,
                chat_template=template,
                return_assistant_tokens_mask=True,
                **{**self._inner.special_tokens_map, **self._template_args},
            )
        (text,), (spans,) = rendered
        pieces = []
        offset = 0
        for start, end in spans:
            pieces += [(text[offset:start], False), (text[start:end], True)]
            offset = end
        return tuple((piece, by_assistant) for piece, by_assistant in (*pieces, (text[offset:], False)) if piece)

    @contextmanager
    def _template_errors(self, messages: Sequence[Message]) -> Iterator[None]:
        """Limits the template's steps, and turns its errors into a DataError naming the roles."""
        if not (self._chat_template or self._inner.chat_template):
            raise no_template(self._folder)
        try:
            with bounded():
                yield
        except Exception as error:
            raise DataError(
                f"the chat template refuses messages of the roles {[m.role for m in messages]}: {error}",
                where=self._folder,
                fix="correct the messages, or set model.custom_chat_template",
            ) from error


def open_tokenizer(
    path: str,
    *,
    chat_template: str | None = None,
    trust_remote_code: bool = False,
    template_args: Mapping[str, Any] | None = None,
) -> HfTokenizer:
    """Opens the tokenizer of a local model folder, never using the network. Raises DataError if there is none.

    `template_args` are variables of the chat template, such as `enable_thinking`. Raises NotInstalledError without the
    extra `torch`.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise DataError(
            f"model folder {path!r} does not exist",
            where=path,
            fix="rftd reads local folders: download the model and set model.model_path to its folder",
        )
    check_extra(TORCH, "the tokenizer of a model folder")
    # The import takes seconds; processes that only fold or plan never pay for it.
    from transformers import AutoTokenizer

    try:
        inner = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=trust_remote_code)
    except Exception as error:
        # For an empty folder transformers lists libraries to install, and none of them helps.
        message = f"no tokenizer can be read from the model folder: {type(error).__name__}: {error}"
        raise DataError(
            message if has_tokenizer(folder) else f"model folder {path!r} holds no tokenizer",
            where=path,
            fix=_OWN_CODE_FIX if has_tokenizer_code(folder) and not trust_remote_code else _FILES,
        ) from error
    if not inner.encode(_ANY_TEXT, add_special_tokens=False):
        # transformers makes an empty one for some kinds of model, without an error.
        raise DataError(
            "there is no tokenizer in the model folder: no text becomes a token",
            where=path,
            fix=_FILES,
        )
    vocabulary = number_in(settings_of(folder), "vocab_size")
    return HfTokenizer(
        inner,
        folder=path,
        chat_template=chat_template,
        eos_ids=_read_eos_ids(inner, folder, vocabulary),
        vocabulary_tokens=vocabulary,
        template_args=template_args,
    )


def _beginning_ids(inner: Any) -> tuple[int, ...]:
    """Returns the ids before a text; ids behind it would end a prompt, and are left out."""
    bare = inner.encode(_ANY_TEXT, add_special_tokens=False)
    whole = inner.encode(_ANY_TEXT, add_special_tokens=True)
    starts = (start for start in range(len(whole)) if whole[start : start + len(bare)] == bare)
    # If the text itself is then encoded differently, only the beginning of the sequence is known.
    bos_count = int(inner.bos_token_id is not None and whole[:1] == [inner.bos_token_id])
    return tuple(whole[: next(starts, bos_count)])


def _read_eos_ids(inner: Any, folder: Path, vocabulary: int) -> tuple[int, ...]:
    """Returns the tokenizer's end of sequence, then the ends in generation_config.json within the model's vocabulary.

    Raises DataError for an end of the tokenizer's without an embedding: rows are trained with it behind them.
    """
    end_id = inner.eos_token_id
    if vocabulary and end_id is not None and end_id >= vocabulary:
        raise DataError(
            f"the tokenizer ends a text with the token {inner.eos_token!r}, number {end_id}, and the model has "
            f"{vocabulary} tokens, 0 to {vocabulary - 1}",
            where=str(folder),
            field=MODEL_FIELD,
            fix=_MATCHING,
        )
    ids: list[int] = [] if end_id is None else [int(end_id)]
    # generation_config.json may have one id or several; vLLM stops at all of them, so a trained response ends at them
    # too.
    ids.extend(end for end in generation_ends(folder) if not vocabulary or end < vocabulary)
    return tuple(dict.fromkeys(ids))
