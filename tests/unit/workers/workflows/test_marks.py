"""`@rftd.reward` and `@rftd.workflow`: unchanged functions, checked where they are defined and where they are named."""

from __future__ import annotations

import pytest

import rftd
from rftd.ops.errors import ConfigError
from rftd.workers.workflows.rewards.scorer import open_scorer
from rftd.workers.workflows.source import SourceName
from rftd.workers.workflows.workflow_source import open_workflow_source

MARKED = """
import rftd

@rftd.reward
def score(response, truth):
    return float(response == truth)

@rftd.workflow
async def run(task):
    return task
"""


def test_a_marked_function_is_unchanged_and_runs_from_a_file() -> None:
    def score(response: str) -> float:
        return 1.0

    assert rftd.reward(score) is score
    sources = {"m.py": MARKED}
    open_scorer("m.py:score", sources=sources)
    open_workflow_source(SourceName("m.py", "run"), MARKED, {})
    with pytest.raises(ConfigError, match="'run' is marked as a workflow"):
        open_scorer("m.py:run", sources=sources)
    with pytest.raises(ConfigError, match="'score' is marked as a reward"):
        open_workflow_source(SourceName("m.py", "score"), MARKED, {})


def test_a_mistake_is_an_error_where_it_is_defined() -> None:
    class Empty:
        pass

    def positional(response: str, /) -> float:
        return 1.0

    for part, problem in ((Empty, "no method 'score'"), (positional, "'response' without a name"), (3, "is a int")):
        with pytest.raises(ConfigError, match=problem):
            rftd.reward(part)  # type: ignore[type-var]
    for part, problem in ((Empty, "no method 'run'"), (positional, "no coroutine function")):
        with pytest.raises(ConfigError, match=problem):
            rftd.workflow(part)
