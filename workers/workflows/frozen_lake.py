"""`FrozenLakeWorkflow`: a rollout of moves over a lake with holes, from the start to the goal.

The lake of a row is drawn from its numbers `seed`, `size` and `p`, so no package and no simulator is needed. After the
game of the same name in Gymnasium and RAGEN: S start, F ice, H hole, G goal.
"""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import msgspec

from rftd.ops.decoding import converted
from rftd.ops.errors import RolloutError
from rftd.workers.datasets.message import Message
from rftd.workers.datasets.task import Task
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.rewards.reward import RewardResult
from rftd.workers.workflows.trajectory import Trajectory

if TYPE_CHECKING:
    from rftd.workers.generation.model import Model
    from rftd.workers.workflows.rewards.scorer import Scorer

PLAYER: Final = "P"
"""Character of the player."""
_MOVES: Final = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
"""Change of row and column by each move."""
_SIDES: Final = {"up": ("left", "right"), "down": ("left", "right"), "left": ("up", "down"), "right": ("up", "down")}
"""Directions of a slip by the wanted move."""
_ANSWER: Final = re.compile(r"\b(up|down|left|right)\b", re.IGNORECASE)
"""A move named in an answer."""
_DRAWS: Final = 1000
"""Lakes drawn before giving up: at the default share of ice, more than half of them have a way."""
_RULES: Final = """\
You stand on a frozen lake, at P. Reach the goal G; a step into a hole H ends the walk. _ is ice, and the edge of the \
lake stops you. In each turn, think if you like, and end your answer with one move: up, down, left or right."""
"""System prompt with the rules."""

Size = Annotated[int, msgspec.Meta(ge=2, le=20)]
"""Type of a lake's size."""
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
"""Type of the share of ice."""
Steps = Annotated[int, msgspec.Meta(ge=1, le=100)]
"""Type of the number of moves."""


class Lake:
    """A lake of ice and holes with a way from the start to the goal, and the position of the player."""

    def __init__(
        self, seed: int, size: int, ice: float, *, longest_way: int | None = None, is_slippery: bool = False
    ) -> None:
        """Draws holes with the chance 1 - `ice` until a way of at most `longest_way` moves exists; None for any length.

        Raises RolloutError if none appears.
        """
        chance = random.Random(seed)  # noqa: S311 - a game
        self._slips = random.Random(f"{seed} slips") if is_slippery else None  # noqa: S311 - a game
        """Directions of slips, equal for equal seeds and moves; None for ice that does not slip."""
        for _ in range(_DRAWS):
            self.cells = [["F" if chance.random() < ice else "H" for _ in range(size)] for _ in range(size)]
            start, goal = ((chance.randrange(size), chance.randrange(size)) for _ in range(2))
            if start == goal:
                continue
            self.cells[start[0]][start[1]] = "S"
            self.cells[goal[0]][goal[1]] = "G"
            self.player = start
            way = self._shortest(start)
            if way is not None and (longest_way is None or way <= longest_way):
                return
        length = "" if longest_way is None else f" of at most {longest_way} moves"
        problem = f"no lake of seed {seed}, size {size} and share {ice:g} of ice has a way{length}"
        raise RolloutError(problem, fix="raise p" if longest_way is None else "raise p or env_max_steps")

    @property
    def cell(self) -> str:
        """The cell of the player: S, F, H or G."""
        return self.cells[self.player[0]][self.player[1]]

    @property
    def shortest(self) -> int:
        """The number of moves of a shortest way from the player to the goal; 0 at the goal, and in a hole."""
        return self._shortest(self.player) or 0

    def move(self, direction: str) -> bool:
        """Moves the player, on slippery ice in one of three directions (as in Gymnasium: as wanted, or to a side), each
        with the chance 1/3; False at the edge, where the player stays.
        """
        if self._slips is not None:
            direction = self._slips.choice((direction, *_SIDES[direction]))
        row, column = (place + step for place, step in zip(self.player, _MOVES[direction], strict=True))
        if not (0 <= row < len(self.cells) and 0 <= column < len(self.cells)):
            return False
        self.player = (row, column)
        return True

    def drawn(self) -> str:
        """Returns the lake as lines, with the player as P, and ice and start as _."""
        rows = [["_" if cell in "FS" else cell for cell in cells] for cells in self.cells]
        rows[self.player[0]][self.player[1]] = PLAYER
        return "\n".join(" ".join(cells) for cells in rows)

    def _shortest(self, start: tuple[int, int]) -> int | None:
        """Returns the length of a shortest way over ice to the goal, by breadth."""
        distances = {start: 0}
        queue = [start]
        for place in queue:
            cell = self.cells[place[0]][place[1]]
            if cell == "G":
                return distances[place]
            for down, right in _MOVES.values() if cell != "H" else ():
                beside = (place[0] + down, place[1] + right)
                inside = all(0 <= number < len(self.cells) for number in beside)
                if inside and beside not in distances:
                    distances[beside] = distances[place] + 1
                    queue.append(beside)
        return None


class FrozenLakeWorkflow:
    """Plays one lake: an answer for each move, until goal, hole or `agent_max_steps`. The reward is 1 at the goal, else
    0.
    """

    default_reward: ClassVar[str | None] = "exact_match_reward"
    """Never used: the lake itself decides."""

    def __init__(
        self,
        *,
        agent_max_steps: Steps = 10,
        env_max_steps: Steps = 8,
        is_slippery: bool = False,
        size: Size = 4,
        p: Share = 0.8,
    ) -> None:
        """`env_max_steps` is the maximum length of a lake's shortest way, `size` and the share `p` of ice are for rows
        without columns of their names. With `is_slippery`, two of three moves slip to a side.
        """
        self._max_steps = agent_max_steps
        self._longest_way = env_max_steps
        self._is_slippery = is_slippery
        self._size = size
        self._ice = p
        """Share of ice in a lake, for rows without a column `p`."""

    async def run(self, task: Task, model: Model, reward: Scorer) -> RolloutResult:
        """Returns the walk as one rollout. Raises RolloutError for columns that are no numbers."""
        lake = self._lake_of(task)
        shortest = lake.shortest
        messages = [Message("system", task.system_prompt or _RULES), Message("user", lake.drawn())]
        trajectory = Trajectory()
        moves = invalid = 0
        while moves < self._max_steps and lake.cell not in "GH":
            response = await model.chat(messages)
            trajectory.add(response)
            if response.truncated:
                break
            moves += 1
            words = _ANSWER.findall(response.text)
            moved = bool(words) and lake.move(words[-1].lower())
            invalid += not moved
            note = "" if moved else "That was no move. "
            messages += [Message("assistant", response.text), Message("user", f"{note}The lake now:\n{lake.drawn()}")]
        figures = {
            "moves": float(moves),
            "invalid_moves": float(invalid),
            "fell": float(lake.cell == "H"),
            "shortest_moves": float(shortest),
        }
        walk = trajectory.result(RewardResult.of(goal=float(lake.cell == "G")))
        return msgspec.structs.replace(walk, metrics={**walk.metrics, **figures})

    def _lake_of(self, task: Task) -> Lake:
        """Returns the lake of a row. Raises RolloutError for invalid columns."""
        numbers = {"seed": task.row, "size": self._size, "p": self._ice}
        row: dict[str, Any] = {name: task.raw.get(name, default) for name, default in numbers.items()}
        try:
            size = converted(row["size"], Size, strict=False)
            ice = converted(row["p"], Share, strict=False)
            return Lake(int(row["seed"]), size, ice, longest_way=self._longest_way, is_slippery=self._is_slippery)
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            problem = f"the columns seed, size and p are {row}: {error}"
            raise RolloutError(problem, where=task.where, fix="write numbers, or leave the columns out") from error
