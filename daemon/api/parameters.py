"""Parameters of requests and their bounds: the document names those that are checked."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi import Header, Path, Query

MOST: Final = (1 << 53) - 1
"""The largest whole number that a request may name: beyond it the numbers of a browser have gaps."""
NAME_CHARACTERS: Final = 500
POSITION_CHARACTERS: Final = 100
CURSOR_CHARACTERS: Final = 8192

Name = Annotated[
    str, Path(max_length=NAME_CHARACTERS, description="Its name, `NAME@2`, its id, or a unique beginning of its id.")
]
After = Annotated[
    str | None,
    Query(max_length=POSITION_CHARACTERS, description="Wait until the tables hold the record at this position."),
]
Limit = Annotated[int, Query(ge=1, le=1000)]
Offset = Annotated[int, Query(ge=0, le=MOST)]
Int = Annotated[int | None, Query(ge=0, le=MOST)]
Real = Annotated[float | None, Query(allow_inf_nan=False)]
Word = Annotated[str | None, Query(max_length=NAME_CHARACTERS, pattern=r"^[^\x00]*$")]
"""Text without NUL characters, which PostgreSQL cannot hold."""
Order = Literal["oldest", "newest", "reward", "-reward", "staleness", "-staleness"]
"""The order of a list of experiences; a name with a minus sign sorts from the highest down."""
ExperienceState = Literal["open", "late", "waiting", "cooling", "planned", "retired"]
Step = Annotated[int, Path(ge=0, le=MOST)]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="Repeated with the same key, a request changes nothing.",
    ),
]
