"""Figures of an evaluation besides its score: accuracy, uncertainty, several tries, lengths, categories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from rftd.streams.events.experience import CategoryScore, EvalScored
from rftd.streams.events.step import WORTHLESS
from rftd.streams.figures.estimators import best_at, bootstrap, majority_at, pass_at, wilson, worst_at
from rftd.streams.figures.reward_parts import part_of
from rftd.streams.spec.spec import TasksetSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ACCURACY: Final = "accuracy/mean"
"""Name of the figure of accuracy."""
TRIES: Final = "tries"
"""Figure with the number of answers per row; absent for one answer."""
MOST_CATEGORIES: Final = 64
"""Maximum number of categories with figures: the first by name."""
_RESAMPLES: Final = 1000
"""Number of bootstrap resamples for an interval."""
_DRAWN: Final = 4_000_000
"""Maximum number of random numbers for one interval: with many rows, fewer resamples suffice."""
_FEWEST_RESAMPLES: Final = 100
"""Minimum number of bootstrap resamples, however many rows there are."""


def figures_of(scores: Sequence[EvalScored], eval: UUID) -> dict[str, float]:
    """Computes the figures of all scores of an evaluation, in the order of their rows; its id seeds the resampling.

    `accuracy` and the figures based on it are present if every score reports right answers.
    """
    import numpy as np  # here: a check of a file, which needs names of figures, starts without numpy

    rewards = np.concatenate([scored.rewards.view() for scored in scores]).astype("f8")
    tokens = np.concatenate([scored.tokens.view() for scored in scores])
    right = _joined([scored.right for scored in scores])
    tries = scores[0].tries if len({scored.tries for scored in scores}) == 1 else 1
    by_row = rewards.reshape(-1, tries).mean(axis=1)
    figures = {f"score/{end}": figure for end, figure in {**_interval(by_row, eval), **_error(by_row)}.items()}
    if tries > 1:
        figures |= {TRIES: float(tries), **_of_tries(rewards.reshape(-1, tries), tries)}
    if right is not None:
        flags = right != 0
        figures[ACCURACY] = float(flags.mean())
        right_by_row = flags.reshape(-1, tries).mean(axis=1)
        ends = {**_accuracy_interval(flags, tries, eval), **_error(right_by_row)}
        figures |= {f"accuracy/{end}": figure for end, figure in ends.items()}
        figures |= _lengths(tokens, flags)
        if tries > 1:
            votes = _joined([scored.votes for scored in scores])
            figures |= _solved(flags.reshape(-1, tries), None if votes is None else votes.reshape(-1, tries), tries)
    return figures | _categories(scores, accuracy=right is not None)


def figure_names(taskset: TasksetSpec) -> tuple[str, ...]:
    """Returns the names of the figures a taskset may have, except those of reward parts and categories.

    Figures of accuracy exist only if the taskset's reward reports right answers.
    """
    tries = taskset.repeat_times
    ends = ("mean", "low", "high", "stderr")
    names = [
        "score",
        *(f"score/{end}" for end in ends[1:]),
        *(f"accuracy/{end}" for end in ends),
        "response_length/mean",
    ]
    names += [f"response_length/{name}/mean" for name in ("right", "wrong")]
    if tries > 1:
        names += [f"avg@{tries}", *(f"pass@{k}" for k in _counts(tries))]
        names += [f"{name}@{k}" for name in ("best", "worst", "majority") for k in _counts(tries)[1:]]
    return (*names, *WORTHLESS)


def is_open_figure(name: str) -> bool:
    """True for the figure of a reward part or a category, whose names are known only after an evaluation."""
    ends = ("/answers", "/score", "/accuracy")
    return part_of(name) is not None or (name.startswith("category/") and name.endswith(ends))


def _joined(arrays: Sequence[Any]) -> NDArray[Any] | None:
    """Concatenates the numbers of all arrays; None if one is missing."""
    import numpy as np

    if any(array is None for array in arrays):
        return None
    joined: NDArray[Any] = np.concatenate([array.view() for array in arrays])
    return joined


def _interval(values: NDArray[np.float64], eval: UUID) -> dict[str, float]:
    """Computes the interval of a mean over rows."""
    import numpy as np

    if (values == values[0]).all():
        return {"low": float(values[0]), "high": float(values[0])}
    resamples = max(_FEWEST_RESAMPLES, min(_RESAMPLES, _DRAWN // len(values)))
    random = np.random.Generator(np.random.PCG64(eval.int))
    low, high = bootstrap(values, random.integers(0, len(values), (resamples, len(values))))
    return {"low": low, "high": high}


def _error(means: NDArray[np.float64]) -> dict[str, float]:
    """Computes the standard error of a mean over rows; undefined for one row."""
    return {"stderr": float(means.std(ddof=1) / len(means) ** 0.5)} if len(means) > 1 else {}


def _accuracy_interval(right: NDArray[np.bool_], tries: int, eval: UUID) -> dict[str, float]:
    """Computes Wilson's interval for one answer to each row; several tries of one row are correlated, so rows are
    resampled.
    """
    if tries > 1:
        return _interval(right.reshape(-1, tries).mean(axis=1), eval)
    low, high = wilson(int(right.sum()), len(right))
    return {"low": low, "high": high}


def _counts(tries: int) -> list[int]:
    """Returns the powers of two up to the number of tries, and the number itself."""
    powers = [1 << exponent for exponent in range(tries.bit_length()) if 1 << exponent < tries]
    return [*powers, tries]


def _of_tries(rewards: NDArray[np.float64], tries: int) -> dict[str, float]:
    figures = {f"avg@{tries}": float(rewards.mean())}
    for k in _counts(tries)[1:]:
        figures[f"best@{k}"] = best_at(rewards, k)
        figures[f"worst@{k}"] = worst_at(rewards, k)
    return figures


def _solved(right: NDArray[np.bool_], votes: NDArray[Any] | None, tries: int) -> dict[str, float]:
    figures = {f"pass@{k}": pass_at(right, k) for k in _counts(tries)}
    if votes is not None:
        figures |= {f"majority@{k}": majority_at(right, votes, k) for k in _counts(tries)[1:]}
    return figures


def _lengths(tokens: NDArray[Any], right: NDArray[np.bool_]) -> dict[str, float]:
    """Computes the mean lengths of right and of wrong answers, in tokens, where there are any."""
    named = {"right": tokens[right], "wrong": tokens[~right]}
    return {f"response_length/{name}/mean": float(lengths.mean()) for name, lengths in named.items() if len(lengths)}


def _categories(scores: Sequence[EvalScored], *, accuracy: bool) -> dict[str, float]:
    sums: dict[str, CategoryScore] = {}
    for scored in scores:
        for name, score in scored.categories.items():
            earlier = sums.get(name, CategoryScore(0, 0.0, 0))
            sums[name] = CategoryScore(
                earlier.answers + score.answers, earlier.reward + score.reward, earlier.right + score.right
            )
    figures: dict[str, float] = {}
    for name in sorted(sums)[:MOST_CATEGORIES]:
        total = sums[name]
        if not total.answers:
            continue
        figures[f"category/{name}/answers"] = float(total.answers)
        figures[f"category/{name}/score"] = total.reward / total.answers
        if accuracy:
            figures[f"category/{name}/accuracy"] = total.right / total.answers
    return figures
