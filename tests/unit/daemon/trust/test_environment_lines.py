"""An environment of somebody but the owner is allowed by the line of its server, and by nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rftd.daemon.trust.allowances import Allowances
from rftd.daemon.trust.asker import AccessRole, Asker, NotAllowedError
from rftd.daemon.trust.judge import SubmissionJudge


@pytest.mark.parametrize(
    ("pattern", "arguments", "refused"),
    [
        ("python gymnasium *", {"environment": "gymnasium://A?size=3"}, ""),
        ("python gymnasium A size=3", {"environment": "gymnasium://A?size=3"}, ""),
        ("python gymnasium A", {"environment": "gymnasium://A?size=3"}, "environment"),
        ("python *", {"environment": "gymnasium://A?python=/evil/python"}, "environment"),
        ("/srv/v/bin/python verifiers *", {"environment": "verifiers://a?python=/srv/v/bin/python"}, ""),
        ("python gymnasium *", {"environment": "gymnasium://A", "network": True}, "network"),
        ("python gymnasium *", {"environment": "gymnasium://A", "readable": ["/"]}, "readable"),
        ("python gymnasium *", {"environment": "gymnasium://A", "environ": {"PYTHONPATH": "/evil"}}, "environ"),
        ("node env.mjs *", {"environment": "command://a", "environment_command": ["node", "env.mjs"]}, ""),
        ("node env.mjs", {"environment": "command://a", "environment_command": ["node", "env.mjs"]}, "_command"),
        ("python *", {"environment": "gymnasium://A", "environment_folder": "/etc"}, "environment_folder"),
    ],
)
def test_an_environment_is_allowed_by_the_line_of_its_server(
    pattern: str, arguments: dict[str, Any], refused: str, tmp_path: Path
) -> None:
    allowances = Allowances(roots=(str(tmp_path),), allow_commands=(pattern,))
    judge = SubmissionJudge(Asker("ann", AccessRole.SUBMIT), allowances)
    if not refused:
        judge.environment(arguments, ("workflow_args",))
        assert [grant.kind for grant in judge.grants] == ["allow_commands"]
        return
    with pytest.raises(NotAllowedError) as caught:
        judge.environment(arguments, ("workflow_args",))
    assert refused in (caught.value.field or "")
