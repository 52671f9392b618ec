"""Tasks of OpenEnv: `openenv://package.server.environment:Class?action=package.models:Action&size=64`.

A row is a seed; `seed` is the first one. The model's text is the action's only field, or a JSON object with its fields;
an observation with one field of its own is that field, any other is a JSON object. The reward is the sum of the rewards
of the steps; the scores of a rubric are figures beside it. Further arguments are those of the environment's class.
"""

from __future__ import annotations

import importlib
import inspect
import json
from typing import Any

OWN_FIELDS = {"done", "reward", "metadata"}
"""Fields of every observation and action."""


class OpenEnvTasks:
    """The rows of an environment: seeds, one after the other."""

    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        self._size = int(arguments.pop("size", 64))
        self._seed = int(arguments.pop("seed", 42))
        self._environment = class_at(name)
        self._action = class_at(arguments.pop("action"))
        self._arguments = arguments

    def row(self, index: int) -> dict[str, Any] | None:
        """Returns the first observation of a seed."""
        if index >= self._size:
            return None
        episode = self.episode(index, 0)
        try:
            return {"prompt": episode.first, "response": ""}
        finally:
            episode.close()

    def episode(self, index: int, seed: int) -> OpenEnvEpisode:
        """Returns an episode from the row's seed: OpenEnv has one seed for the first state and all chances."""
        return OpenEnvEpisode(self._environment(**self._arguments), self._action, self._seed + index)


class OpenEnvEpisode:
    """One episode of an environment."""

    def __init__(self, environment: Any, action: Any, seed: int) -> None:
        self._environment = environment
        self._action = action
        self._fields = [name for name in action.model_fields if name not in OWN_FIELDS]
        # Environments made from OpenEnv's own template accept no seed.
        wanted = inspect.signature(environment.reset).parameters.values()
        seeded = any(parameter.name == "seed" or parameter.kind is parameter.VAR_KEYWORD for parameter in wanted)
        self.first = shown(environment.reset(seed=seed) if seeded else environment.reset())
        self._rewards: list[float] = []

    def step(self, action: str) -> tuple[str, bool]:
        """Takes an action; a text that is none ends the episode with an error."""
        fields = {self._fields[0]: action} if len(self._fields) == 1 else json.loads(action)
        observation = self._environment.step(self._action.model_validate(fields))
        self._rewards.append(float(observation.reward or 0.0))
        return shown(observation), observation.done

    def score(self) -> tuple[float, dict[str, float]]:
        """Returns the sum of the rewards, and the last scores of the rubric."""
        total = sum(self._rewards)
        parts = {"return": total}
        rubric = getattr(self._environment, "rubric", None)
        for name, inner in rubric.named_rubrics() if rubric is not None else ():
            if isinstance(inner.last_score, int | float):
                parts[name] = float(inner.last_score)
        return total, parts

    def close(self) -> None:
        """Closes the environment."""
        self._environment.close()


def class_at(path: str) -> Any:
    """Returns the class at `module:Class`."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def shown(observation: Any) -> str:
    """Returns an observation as text."""
    fields = {name: part for name, part in observation.model_dump(mode="json").items() if name not in OWN_FIELDS}
    texts = [part for part in fields.values() if isinstance(part, str)]
    if len(fields) == 1 and texts:
        return texts[0]
    return json.dumps(fields, ensure_ascii=False)


def open_tasks(name: str, arguments: dict[str, Any]) -> OpenEnvTasks:
    """Returns the tasks of an environment."""
    return OpenEnvTasks(name, arguments)
