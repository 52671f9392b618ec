"""Games of TextWorld, made on this machine: `textworld://simple?rewards=dense&goal=detailed&size=64`.

The name is one of TextWorld's challenges (`simple`, `cooking`, `coin_collector`, `treasure_hunter`) with its own
arguments, or `custom` with the sizes of a game. A row is a seed, and a game; `size` is the number of rows, `seed` the
first one. The model writes one command at a time, on the last line of its text.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import tempfile
from typing import Any

import textworld
from textworld.challenges import CHALLENGES
from textworld.generator import compile_game, make_game

CUSTOM = "custom"
"""Name of the challenge generated from sizes."""
SIZES = ("nb_rooms", "nb_objects", "nb_parallel_quests", "quest_length", "quest_breadth", "quest_depth")
"""Arguments of `custom`, as in TextWorld's `GameOptions`."""
REQUEST = 'Answer with one command on a line of its own, such as "look", "inventory" or "go north".'
COMMAND_CHARACTERS = 200
"""Maximum characters of a command."""
GAME = "game.z8"
"""Name of the file of a generated game."""
KEPT_GAMES = 256
"""Number of compiled games kept for further episodes, of 0.7 MB each."""
_STATUS = re.compile(r"[^\S\n]*-= [^\n]* =-\d+/\d+\s*$|\n>[^\n]*$")
"""Prompt and status line at the end of an answer, for a terminal."""


class MadeGames:
    """The games of one challenge, each made from a seed."""

    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        self._name = name
        self._size = int(arguments.pop("size", 64))
        self._seed = int(arguments.pop("seed", 42))
        self._settings = _settings(name, arguments)
        self._last: tuple[int, Any, Any] = (-1, None, None)
        """Row, game and options of the game made last, because an episode begins by a look at the row."""

    def row(self, index: int) -> dict[str, Any] | None:
        """Returns the row of a game, with the game's objective as the prompt; None after the last game."""
        if index >= self._size:
            return None
        game, _ = self._made(index)
        return {"prompt": f"{game.objective.strip()}\n\n{REQUEST}", "response": ""}

    def episode(self, index: int, seed: int) -> PlayedGame:
        """Returns an episode of a game; games have no chances after their making, so the seed is not used."""
        home = os.path.abspath(os.path.join("games", str(self._seed + index)))
        if os.path.exists(home):
            return PlayedGame(home)
        os.makedirs("games", exist_ok=True)
        own = os.path.abspath(tempfile.mkdtemp(dir="games"))
        game, options = self._made(index)
        options.path = os.path.join(own, GAME)
        compile_game(game, options)
        if len(os.listdir("games")) > KEPT_GAMES:
            return PlayedGame(own, temporary=True)
        try:
            os.rename(own, home)
        except OSError:  # sessions are processes: another one has compiled the game too
            shutil.rmtree(own)
        return PlayedGame(home)

    def _made(self, index: int) -> tuple[Any, Any]:
        """Returns the game of a row, and its options."""
        if self._last[0] == index:
            return self._last[1:]
        options = textworld.GameOptions()
        options.seeds = self._seed + index
        if self._name == CUSTOM:
            for size, number in self._settings.items():
                setattr(options, size, int(number))
            game = make_game(options)
        else:
            game = CHALLENGES[f"tw-{self._name}"][1](dict(self._settings), options)
        self._last = index, game, options
        return game, options


class PlayedGame:
    """One episode of a compiled game."""

    def __init__(self, folder: str, *, temporary: bool = False) -> None:
        """A `temporary` folder is removed with the episode."""
        infos = textworld.EnvInfos(score=True, max_score=True, won=True, lost=True, moves=True)
        self._folder = folder if temporary else None
        self._game = textworld.start(os.path.join(folder, GAME), infos)
        self._state = self._game.reset()

    def step(self, action: str) -> tuple[str, bool]:
        """Returns the game's answer to the last line of the text as a command, and whether the game has ended."""
        lines = [line.strip().lstrip(">").strip() for line in action.splitlines()]
        command = next((line for line in reversed(lines) if line), "")[:COMMAND_CHARACTERS]
        if not command:
            return f"That is no command. {REQUEST}", False
        self._state, _, done = self._game.step(command)
        return _STATUS.sub("", self._state.feedback.rstrip()).strip(), done

    def score(self) -> tuple[float, dict[str, float]]:
        """Returns the share of the game's points, whether the game was won, and the number of moves."""
        share = float(self._state.score or 0) / max(1, self._state.max_score or 0)
        return share, {"points": share, "won": float(bool(self._state.won)), "moves": float(self._state.moves or 0)}

    def close(self) -> None:
        """Ends the game."""
        self._game.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _settings(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of a challenge with its defaults. Raises ValueError."""
    if name == CUSTOM:
        if unknown := arguments.keys() - set(SIZES):
            raise ValueError(f"custom games have no {', '.join(sorted(unknown))}; they have {', '.join(SIZES)}")
        return arguments
    challenges = [challenge.removeprefix("tw-") for challenge in CHALLENGES]
    if name not in challenges:
        raise ValueError(f"no game {name!r}: name {CUSTOM}, {', '.join(challenges)}")
    parser = argparse.ArgumentParser(prog=name, add_help=False, exit_on_error=False)
    CHALLENGES[f"tw-{name}"][2](parser)
    words = []
    for key, setting in arguments.items():
        option = f"--{key.replace('_', '-')}"
        words += [option] if setting is True else [] if setting is False else [option, str(setting)]
    try:
        return vars(parser.parse_args(words))
    except SystemExit:  # argparse has written the reason
        raise ValueError(f"the arguments {arguments} are not those of {name}") from None


def open_tasks(name: str, arguments: dict[str, Any]) -> MadeGames:
    """Returns the games of a challenge."""
    return MadeGames(name, arguments)
