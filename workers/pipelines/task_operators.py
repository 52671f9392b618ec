"""The built-in operators of the task pipeline, by Data-Juicer's names and with its arguments and figures."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from rftd.ops.errors import DataError
from rftd.workers.pipelines.task_operator import PipelineRow

Rows = Sequence[PipelineRow]
ProcessedRows = tuple[Rows, dict[str, float]]
Length = Annotated[int, msgspec.Meta(ge=0)]

_NO_BOUND: Final = 2**63 - 1
"""Default maximum: no limit."""
_NON_CHARACTER: Final = re.compile(r"\s+|\d+|[^\w]")
"""White space, digits and punctuation, optionally ignored when texts are compared."""


class _TextFilter:
    """A filter by one figure of each row's text: keeps rows between two bounds, and records the figure."""

    separate_rows = True
    stat: str

    def __init__(self, least: float, most: float) -> None:
        self._least = least
        self._most = most

    def figure(self, text: str) -> float:
        """Returns the figure of a text."""
        raise NotImplementedError

    def process(self, rows: Rows) -> ProcessedRows:
        """Returns the rows with a figure within the bounds."""
        scored = [msgspec.structs.replace(row, stats={**row.stats, self.stat: self.figure(row.text)}) for row in rows]
        return [row for row in scored if self._least <= row.stats[self.stat] <= self._most], {}


class TextLengthFilter(_TextFilter):
    """`text_length_filter`: keeps rows with texts of `min_len` to `max_len` characters (figure `text_len`)."""

    stat = "text_len"

    def __init__(self, min_len: Length = 10, max_len: Length = _NO_BOUND) -> None:
        super().__init__(min_len, max_len)

    def figure(self, text: str) -> float:
        """Returns the number of characters."""
        return len(text)


class WordsNumFilter(_TextFilter):
    """`words_num_filter`: keeps rows with texts of `min_num` to `max_num` words between blanks (`num_words`)."""

    stat = "num_words"

    def __init__(self, min_num: Length = 10, max_num: Length = _NO_BOUND) -> None:
        super().__init__(min_num, max_num)

    def figure(self, text: str) -> float:
        """Returns the number of words."""
        return len(text.split())


class AlphanumericFilter(_TextFilter):
    """`alphanumeric_filter`: keeps rows with a share of letters and digits within the bounds (`alnum_ratio`)."""

    stat = "alnum_ratio"

    def __init__(self, min_ratio: float = 0.25, max_ratio: float = 1.0) -> None:
        super().__init__(min_ratio, max_ratio)

    def figure(self, text: str) -> float:
        """Returns letters and digits in proportion to all characters; 0 for an empty text."""
        return sum(character.isalnum() for character in text) / len(text) if text else 0.0


class CharacterRepetitionFilter(_TextFilter):
    """`character_repetition_filter`: keeps rows with a share of repeated characters within the bounds.

    The share is that of the commonest repeated runs of `rep_len` characters, at most the square root of the number of
    different ones (figure `char_rep_ratio`).
    """

    stat = "char_rep_ratio"

    def __init__(
        self, rep_len: Annotated[int, msgspec.Meta(ge=1)] = 10, min_ratio: float = 0.0, max_ratio: float = 0.5
    ) -> None:
        super().__init__(min_ratio, max_ratio)
        self._run = rep_len

    def figure(self, text: str) -> float:
        """Returns the share of repeated runs."""
        runs = Counter(text[start : start + self._run] for start in range(len(text) - self._run + 1))
        counts = sorted(runs.values(), reverse=True)
        repeated = sum(count > 1 for count in counts)
        return sum(counts[: min(math.isqrt(len(counts)), repeated)]) / sum(counts) if counts else 0.0


class DocumentDeduplicator:
    """`document_deduplicator`: keeps the first row of each text."""

    def __init__(self, lowercase: bool = False, ignore_non_character: bool = False) -> None:
        """`lowercase` compares texts without case; `ignore_non_character` compares them without blanks, digits and
        punctuation.
        """
        self._lowercase = lowercase
        self._bare = ignore_non_character

    def process(self, rows: Rows) -> ProcessedRows:
        """Returns the rows with a text of no earlier row."""
        firsts: dict[bytes, PipelineRow] = {}
        for row in rows:
            text = row.text.lower() if self._lowercase else row.text
            text = _NON_CHARACTER.sub("", text) if self._bare else text
            firsts.setdefault(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest(), row)
        return list(firsts.values()), {}


class SpecifiedNumericFieldFilter:
    """`specified_numeric_field_filter`: keeps rows with a number in column `field_key` within the bounds."""

    separate_rows = True

    def __init__(self, field_key: str, min_value: float = -math.inf, max_value: float = math.inf) -> None:
        self._key = field_key
        self._least = min_value
        self._most = max_value

    def process(self, rows: Rows) -> ProcessedRows:
        """Returns the rows within the bounds. Raises DataError for a column without a number."""
        return [row for row in rows if self._least <= _number(row, self._key) <= self._most], {}


class FieldScoreMapper:
    """`field_score_mapper`: records the number in column `field_key` as a figure, for the priority; rftd only."""

    separate_rows = True

    def __init__(self, field_key: str, stats_key: str) -> None:
        """`stats_key` names the figure: `difficulty_score`, `quality_score`, `diversity_score` or `consumed_cnt`."""
        self._key = field_key
        self._stat = stats_key

    def process(self, rows: Rows) -> ProcessedRows:
        """Returns the rows with the figure. Raises DataError for a column without a number."""
        return [
            msgspec.structs.replace(row, stats={**row.stats, self._stat: _number(row, self._key)}) for row in rows
        ], {}


def _number(row: PipelineRow, key: str) -> float:
    cell = row.columns.get(key)
    try:
        number = float(cell) if isinstance(cell, int | float | str) else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise DataError(
            f"row {row.row} of input {row.input} has {cell!r} in column {key!r}, which is no number",
            fix="correct field_key, or the row",
        )
    return number
