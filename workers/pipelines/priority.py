"""Priorities of tasks: figures of operators, combined into scores, and weighted. The formulas are the guide's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

WEIGHTS: Final[Mapping[str, float]] = {"difficulty": -0.7, "diversity": 0.8, "usage_frequency": -0.5, "quality": 1.0}
"""Weights of the scores in a priority, where the file names none."""
_MIDDLE: Final = 0.5
"""Score of difficulty and quality of rows without figures."""


class _Figure(NamedTuple):
    """Share of one figure in a score: from 0 to `most`, or, for None, from the lowest to the highest figure of all
    rows.
    """

    name: str
    rises: bool = True
    most: float | None = 1.0


_SCORES: Final[Mapping[str, tuple[_Figure, ...]]] = {
    "quality_score": (
        _Figure("alnum_ratio"),
        _Figure("char_rep_ratio", rises=False),
        _Figure("flagged_words_ratio", rises=False),
        _Figure("special_char_ratio", rises=False),
        _Figure("stopwords_ratio"),
        _Figure("word_rep_ratio", rises=False),
        _Figure("llm_quality_score"),
    ),
    "difficulty_score": (
        _Figure("perplexity", most=None),
        _Figure("lang_score", rises=False),
        _Figure("llm_difficulty_score"),
    ),
}
"""Figures of each score; a score is the mean of the available figures, normalised."""
_SCORE_BY_WEIGHT: Final[Mapping[str, tuple[str, float]]] = {
    "difficulty": ("difficulty_score", _MIDDLE),
    "diversity": ("diversity_score", 0.0),
    "usage_frequency": ("consumed_cnt", 0.0),
    "quality": ("quality_score", _MIDDLE),
}
"""The score, or the figure, of each weight, and the value for rows without."""


def priorities(figures: Sequence[Mapping[str, float]], weights: Mapping[str, float]) -> list[float] | None:
    """Returns the priority of each row from the rows' figures; None if no row has a figure of a priority."""
    extremes = {
        name: _extremes(figures, name) for scores in _SCORES.values() for name, _, most in scores if most is None
    }
    scored = [{**_scores(row, extremes), **row} for row in figures]
    names = [_SCORE_BY_WEIGHT[weight][0] for weight in weights]
    if not any(name in row for row in scored for name in names):
        return None
    return [sum(weight * row.get(*_SCORE_BY_WEIGHT[name]) for name, weight in weights.items()) for row in scored]


def _scores(figures: Mapping[str, float], extremes: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Returns the scores computed from a row's figures: the mean of the normalised ones."""
    scores: dict[str, float] = {}
    for score, parts in _SCORES.items():
        shares: list[float] = []
        for name, rises, most in parts:
            if name in figures:
                low, high = (0.0, most) if most is not None else extremes[name]
                share = (figures[name] - low) / (high - low) if high > low else 0.0
                shares.append(share if rises else 1.0 - share)
        if shares:
            scores[score] = sum(shares) / len(shares)
    return scores


def _extremes(figures: Iterable[Mapping[str, float]], name: str) -> tuple[float, float]:
    numbers = [row[name] for row in figures if name in row]
    return (min(numbers), max(numbers)) if numbers else (0.0, 0.0)
