"""A process for decoding token ids: a line with ids in, a line with texts out.

A tokenizer.json is a stranger's file: opening one may need gigabytes, and decoding may never end. The process limits
the memory, and the daemon kills the process when late. Nothing of torch or transformers is imported.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import resource
import sys
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from rftd.ops import limits

MEMORY: Final = "RFTD_TEXT_MEMORY_BYTES"
"""The variable with the process's limit of memory."""


class _TokenizerFault(Exception):
    """An unusable tokenizer, with the reason in words for people."""


class _OpenTokenizers:
    """The tokenizers opened last, by file."""

    def __init__(self) -> None:
        self._open_tokenizer: OrderedDict[tuple[str, str], Any] = OrderedDict()
        """Open tokenizers, the one used last at the end."""

    def get(self, path: str, sha256: str) -> Any:
        """Returns the tokenizer of a file, with the given sha256 unless empty. Raises _TokenizerFault."""
        file = Path(path)
        try:
            status = file.stat()
            key = path, sha256 or f"{status.st_mtime_ns} {status.st_size}"
            if key not in self._open_tokenizer:
                if status.st_size > limits.TOKENIZER_SIZE_BYTES:
                    raise _TokenizerFault(
                        f"tokenizer.json has {status.st_size} bytes, more than {limits.TOKENIZER_SIZE_BYTES}"
                    )
                self._open_tokenizer[key] = _open_tokenizer(file.read_bytes(), sha256)
        except OSError as error:
            raise _TokenizerFault(f"tokenizer.json cannot be read: {error.strerror}") from error
        self._open_tokenizer.move_to_end(key)
        while len(self._open_tokenizer) > limits.TEXT_TOKENIZERS:
            self._open_tokenizer.popitem(last=False)
        return self._open_tokenizer[key]


def _open_tokenizer(content: bytes, sha256: str) -> Any:
    """Opens the content of a tokenizer.json. Raises _TokenizerFault for another digest than `sha256`, and for
    unreadable content.
    """
    if sha256 and hashlib.sha256(content).hexdigest() != sha256:
        raise _TokenizerFault(
            "the copy of tokenizer.json does not match its digest: restore the artifact from a backup"
        )
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise _TokenizerFault("the daemon has no package tokenizers: install rftd[torch] for it") from error
    try:
        return Tokenizer.from_buffer(content)
    except BaseException as error:  # of Rust code, without a class; a panic is a BaseException
        raise _TokenizerFault(f"tokenizer.json cannot be read: {error}"[:500]) from error


def answer(opened: _OpenTokenizers, request: dict[str, Any]) -> dict[str, Any]:
    """Returns the texts of a request, or the fault of its tokenizer."""
    try:
        tokenizer = opened.get(request["path"], request["sha256"])
        sequences = [array("I", base64.b64decode(text["ids"])) for text in request["texts"]]
        texts: list[dict[str, Any]] = []
        for ids, text in zip(sequences, request["texts"], strict=True):
            if text["pieces"]:
                texts.append({"pieces": [piece[: request["chars"]] for piece in _pieces(tokenizer, ids)]})
            else:
                whole = _decode(tokenizer, ids, special=text["special"])
                texts.append({"text": whole[: request["chars"]], "chars": len(whole)})
        unknown = sorted(token for token in set().union(*sequences) if tokenizer.id_to_token(token) is None)
    except _TokenizerFault as fault:
        return {"error": str(fault)}
    except MemoryError:
        raise
    except BaseException as error:  # of Rust code, as above
        return {"error": f"the tokenizer cannot decode: {error}"[:500]}
    return {"texts": texts, "unknown": unknown[:8], "unknown_count": len(unknown)}


def _decode(tokenizer: Any, ids: Sequence[int], *, special: bool) -> str:
    """Returns the text of ids, with special tokens only if `special`."""
    return str(tokenizer.decode(list(ids), skip_special_tokens=not special))


def _pieces(tokenizer: Any, ids: Sequence[int]) -> Iterator[str]:
    """Yields the text added by each id behind the one before: alone, an id loses the space in front of its word."""
    alone = tokenizer.decode_batch([[token] for token in ids], skip_special_tokens=False)
    pairs = tokenizer.decode_batch(
        [list(ids[end - 2 : end]) for end in range(2, len(ids) + 1)], skip_special_tokens=False
    )
    yield from alone[:1]
    for before, after, pair in zip(alone, alone[1:], pairs, strict=False):
        yield pair[len(before) :] if pair.startswith(before) else after


def main() -> None:
    """Answers requests until the input ends."""
    memory = int(os.environ[MEMORY])
    for kind, bound in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(kind)
        ceiling = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(kind, (ceiling, ceiling))
    opened = _OpenTokenizers()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(opened, json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
