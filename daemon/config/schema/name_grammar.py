"""The grammar of names, labels and label texts, typed by people and shown in tables, folders and metrics."""

from __future__ import annotations

import unicodedata
from typing import Annotated, Final, TypeAlias

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

# A file name has 255 bytes on common file systems: enough for a prefix and a suffix.
_NAME_BYTES: Final = 120
"""Maximum size of a name in UTF-8."""
_LABEL_CHARS: Final = 120
"""Maximum length of a label's name."""
_TEXT_CHARS: Final = 500
"""Maximum length of a label's text."""
_NAME_SIGNS: Final = frozenset("_-.+")
"""Signs allowed in names."""
_LABEL_SIGNS: Final = _NAME_SIGNS | frozenset(" /:,=")
"""Signs allowed in names of labels."""
_TEXT_SIGNS: Final = _LABEL_SIGNS | frozenset("@#%()!?&*~;'\"${}\\")
"""Signs allowed in texts never typed as an argument; none of the signs begins markup of a terminal or a page."""
_LETTERS: Final = frozenset("LMN")
"""Unicode categories of letters, marks and numbers."""
_UNSEEN: Final = frozenset(map(chr, (0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0, *range(0xFE00, 0xFE10))))
"""Letters and marks invisible in every font."""


def _folder(name: str) -> str:
    """Validates a word as a folder's name, never mistaken by a command for an option or for `NAME@2`."""
    if name and not (_begins(name) and _consists(name, _NAME_SIGNS)):
        raise PydanticCustomError(
            "folder_name",
            "becomes a folder's name and is typed in commands: letters, digits and `_ - . +`, and it begins with a "
            "letter, a digit or `_`",
        )
    if len(name.encode()) > _NAME_BYTES:
        raise PydanticCustomError(
            "folder_name", "becomes a folder's name: at most {limit} bytes", {"limit": _NAME_BYTES}
        )
    return name


def _nonempty_folder(name: str) -> str:
    """Validates a word as a folder's name, and refuses an empty one."""
    if not name:
        raise PydanticCustomError("folder_name", "must not be empty")
    return _folder(name)


def _label(name: str) -> str:
    """Validates a few words used to distinguish rows in tables and metrics."""
    if name and not (_begins(name) and _consists(name, _LABEL_SIGNS)):
        raise PydanticCustomError(
            "label",
            "stands in events, logs and metrics: letters, digits, `_ - . + / : , =` and blanks within, and it begins "
            "with a letter, a digit or `_`",
        )
    return _short(name, _LABEL_CHARS)


def _text(text: str) -> str:
    """Validates the text of a label, shown in events and tables."""
    if not _consists(text, _TEXT_SIGNS):
        signs = " ".join(sorted(_TEXT_SIGNS - {" "}))
        raise PydanticCustomError(
            "label", "stands in events and tables: letters, digits, blanks within and {signs}", {"signs": signs}
        )
    return _short(text, _TEXT_CHARS)


def _short(text: str, limit: int) -> str:
    """Refuses a text longer than `limit` characters."""
    if len(text) > limit:
        raise PydanticCustomError(
            "label", "stands in events, logs and metrics: at most {limit} characters", {"limit": limit}
        )
    return text


def _begins(text: str) -> bool:
    """True if the text begins with a letter, a number or an underscore."""
    return text[0] == "_" or unicodedata.category(text[0])[0] in "LN"


def _consists(text: str, signs: frozenset[str]) -> bool:
    """True for letters and digits of any script in composed form, and for `signs`."""
    return (
        text == text.strip()
        and unicodedata.is_normalized("NFC", text)
        and all(sign in signs or (unicodedata.category(sign)[0] in _LETTERS and sign not in _UNSEEN) for sign in text)
    )


Name: TypeAlias = Annotated[str, AfterValidator(_nonempty_folder)]
"""Name of an experiment, a project or a stage."""
OptionalName: TypeAlias = Annotated[str, AfterValidator(_folder)]
"""A name allowed to be empty."""
Label: TypeAlias = Annotated[str, AfterValidator(_label)]
"""A name for rows of tables and for metrics."""
LabelText: TypeAlias = Annotated[str, AfterValidator(_text)]
"""Text of a label."""
