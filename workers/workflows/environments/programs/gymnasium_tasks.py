"""Tasks of gymnasium as text: `gymnasium://FrozenLake-v1?is_slippery=false&size=64`.

A row is a seed: the first observation is that of the row, and the chances after it are those of the rollout. `size` is
the number of rows, `seed` the first one; further arguments are those of `gymnasium.make`. The model names an action,
the last name in its text counts; the reward is the sum of the rewards of the steps.
"""

from __future__ import annotations

import re
from typing import Any

import gymnasium
from gymnasium.utils import seeding

ACTIONS = {
    "FrozenLake": ("left", "down", "right", "up"),
    "CliffWalking": ("up", "right", "down", "left"),
    "Taxi": ("south", "north", "east", "west", "pickup", "dropoff"),
    "Blackjack": ("stick", "hit"),
}
"""Names of the actions of gymnasium's games of text, by the beginning of the environment's name."""
_MARKS = (
    (re.compile("\x1b\\[4[0-7]m(.?)\x1b\\[0m"), r"[\1]"),  # the player
    (re.compile("\x1b\\[34;1m(.?)\x1b\\[0m"), r"(\1)"),  # Taxi's passenger
    (re.compile("\x1b\\[35m(.?)\x1b\\[0m"), r"<\1>"),  # Taxi's destination
)
"""Marks of text in place of colours."""
_COLOUR = re.compile("\x1b\\[[0-9;]*m")


class SeededTasks:
    """The rows of an environment: seeds, one after the other."""

    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        self._name = name
        self._size = int(arguments.pop("size", 256))
        self._seed = int(arguments.pop("seed", 42))
        self._arguments = arguments
        self._rendered = "ansi" in _modes_of(gymnasium.spec(name).entry_point)

    def row(self, index: int) -> dict[str, Any] | None:
        """Returns the first observation of a seed."""
        if index >= self._size:
            return None
        episode = self.episode(index, 0)
        try:
            return {"prompt": episode.first, "response": ""}
        finally:
            episode.close()

    def episode(self, index: int, seed: int) -> TextEpisode:
        """Returns an episode from the row's first state, with the rollout's chances."""
        mode = "ansi" if self._rendered else None
        environment = gymnasium.make(self._name, render_mode=mode, **self._arguments)
        return TextEpisode(environment, self._name, self._seed + index, seed)


class TextEpisode:
    """One episode of an environment, read and played as text."""

    def __init__(self, environment: Any, name: str, row_seed: int, seed: int) -> None:
        self._environment = environment
        self._actions = _names_of(environment.action_space, name)
        observation, _ = environment.reset(seed=row_seed)
        environment.unwrapped.np_random, _ = seeding.np_random(seed)
        choices = self._choices() if self._actions else "Answer freely."
        self.first = f"You play {name}.\n{choices}\n\n{self._text(observation)}"
        self._reward = 0.0
        self._illegal = 0

    def step(self, action: str) -> tuple[str, bool]:
        """Plays the last action named in the text; a text without one is no step."""
        chosen = self._chosen(action)
        if chosen is None:
            self._illegal += 1
            return f"That names no action. {self._choices()}", False
        observation, reward, terminated, truncated, _ = self._environment.step(chosen)
        self._reward += float(reward)
        return self._text(observation), terminated or truncated

    def score(self) -> tuple[float, dict[str, float]]:
        """Returns the sum of the rewards, and the number of texts without an action."""
        return self._reward, {"return": self._reward, "illegal_actions": self._illegal}

    def close(self) -> None:
        """Closes the environment."""
        self._environment.close()

    def _choices(self) -> str:
        return f"Answer with one of these actions: {', '.join(self._actions)}."

    def _chosen(self, action: str) -> Any:
        if not self._actions:
            return action.strip()
        named = re.findall(r"\b(?:" + "|".join(map(re.escape, self._actions)) + r")\b", action.lower())
        if not named:
            return None
        return self._environment.action_space.start + self._actions.index(named[-1])

    def _text(self, observation: Any) -> str:
        if self._environment.render_mode == "ansi":
            text = self._environment.render()
            for colour, mark in _MARKS:
                text = colour.sub(mark, text)
            return _COLOUR.sub("", text).strip("\n")
        if isinstance(observation, tuple) and self._actions == ACTIONS["Blackjack"]:
            own, dealer, ace = observation
            return f"Your sum: {own}. The dealer shows: {dealer}. Usable ace: {'yes' if ace else 'no'}."
        return observation if isinstance(observation, str) else str(observation)


def _modes_of(entry_point: Any) -> list[str]:
    creator = gymnasium.envs.registration.load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    return list(getattr(creator, "metadata", {}).get("render_modes", ()))


def _names_of(space: Any, name: str) -> tuple[str, ...]:
    """Returns the names of the actions; none for actions of free text."""
    if isinstance(space, gymnasium.spaces.Text):
        return ()
    if not isinstance(space, gymnasium.spaces.Discrete):
        raise TypeError(f"{name} has actions of {space}: only one of several, or a text, can be told by a model")
    named = next((names for begin, names in ACTIONS.items() if name.startswith(begin) and len(names) == space.n), None)
    return named or tuple(str(space.start + number) for number in range(int(space.n)))


def open_tasks(name: str, arguments: dict[str, Any]) -> SeededTasks:
    """Returns the tasks of an environment."""
    return SeededTasks(name, arguments)
