"""Names that become folders, and the mode."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from rftd.daemon.config.schema.section import word

_NAME_BYTES = 120


def _folder(name: str) -> str:
    """Any printable text that is the name of one folder."""
    if name in (".", "..") or "/" in name or "\\" in name or not name.isprintable() or name != name.strip():
        raise PydanticCustomError("folder_name", "becomes a folder's name: no slash, no '..', no control characters")
    if len(name.encode("utf-8", "replace")) > _NAME_BYTES:
        raise PydanticCustomError(
            "folder_name", "becomes a folder's name: at most {limit} bytes", {"limit": _NAME_BYTES}
        )
    return name


def _present(name: str) -> str:
    if not name:
        raise PydanticCustomError("folder_name", "must not be empty")
    return _folder(name)


Name: TypeAlias = Annotated[str, AfterValidator(_present)]
OptionalName: TypeAlias = Annotated[str, AfterValidator(_folder)]
Mode: TypeAlias = Annotated[Literal["both", "train", "explore", "bench", "serve", "colocate"], word()]
