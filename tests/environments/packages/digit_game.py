"""An environment of OpenEnv, installed by a folder on the path."""

import random
from typing import Any

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Guess(Action):
    digit: str


class Hint(Observation):
    text: str = ""


class DigitGame(Environment[Guess, Hint, State]):
    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Hint:
        self._digit = random.Random(seed).randrange(10)
        self._steps = 0
        return Hint(text="Guess a digit.")

    def step(self, action: Guess, timeout_s: float | None = None, **kwargs: Any) -> Hint:
        self._steps += 1
        right = str(self._digit) in action.digit
        return Hint(text="Yes." if right else "No.", done=right, reward=float(right))

    @property
    def state(self) -> State:
        return State(step_count=self._steps)
