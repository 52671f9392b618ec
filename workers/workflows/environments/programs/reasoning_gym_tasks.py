"""Tasks of reasoning-gym: `reasoning_gym://leg_counting?size=500&seed=1`, further arguments as the generator's own."""

from __future__ import annotations

from typing import Any

import reasoning_gym
from reasoning_gym.utils import extract_answer

REQUEST = "Give your final answer, and nothing else, between <answer> and </answer>."
"""Text after each question, which asks for the format of the answer."""


class GeneratedTasks:
    """The questions of one generator."""

    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        # Without a seed, reasoning-gym draws one, and no two servers would have equal questions.
        self._dataset = reasoning_gym.create_dataset(name, **{"seed": 42, **arguments})

    def row(self, index: int) -> dict[str, Any] | None:
        """Returns a question, with the answer where the generator has exactly one."""
        if index >= len(self._dataset):
            return None
        entry = self._dataset[index]
        return {"prompt": f"{entry['question'].rstrip()}\n\n{REQUEST}", "response": str(entry.get("answer") or "")}

    def episode(self, index: int, seed: int) -> AnsweredQuestion:
        """Returns an episode of one answer."""
        return AnsweredQuestion(self._dataset, self._dataset[index])


class AnsweredQuestion:
    """A question, its answer, and the score by the generator."""

    def __init__(self, dataset: Any, entry: dict[str, Any]) -> None:
        self._dataset = dataset
        self._entry = entry
        self._answer: str | None = None

    def step(self, action: str) -> tuple[str, bool]:
        """Keeps the answer: the text between the tags."""
        self._answer = extract_answer(action)
        return "", True

    def score(self) -> tuple[float, dict[str, float]]:
        """Returns the generator's score, and whether the answer had tags."""
        score = float(self._dataset.score_answer(self._answer, self._entry))
        return score, {"score": score, "tagged": float(self._answer is not None)}

    def close(self) -> None:
        """Has nothing to close."""


def open_tasks(name: str, arguments: dict[str, Any]) -> GeneratedTasks:
    """Returns the tasks of a generator."""
    return GeneratedTasks(name, arguments)
