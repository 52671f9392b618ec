"""Roles of the agents in a rollout: declared by a workflow, carried by its sequences, named by an algorithm."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from rftd.ops.errors import ConfigError, RolloutError


def roles_of(workflow: object) -> tuple[str, ...]:
    """Returns the roles declared in a workflow's class attribute `roles`; empty for a workflow of a single agent."""
    roles: Sequence[str] = getattr(workflow, "roles", ())
    return tuple(roles)


def check_role(role: str, workflow: object) -> None:
    """Raises RolloutError for the role of a sequence, if the workflow does not declare the role."""
    declared = roles_of(workflow)
    if role not in declared:
        raise RolloutError(
            f"the workflow returned a sequence of role {role!r}, and declares {', '.join(declared) or 'no role'}",
            field="roles",
            fix="name each role in the class attribute `roles` of the workflow",
        )


def check_named(named: Sequence[str], workflow: object, name: str) -> None:
    """Raises ConfigError for a role named by the algorithm, if the workflow called `name` does not declare the role.

    Such a role would never speak, and its peers would be compared otherwise than configured.
    """
    declared = roles_of(workflow)
    for role in named:
        if role not in declared:
            near = difflib.get_close_matches(role, declared, 1)
            raise ConfigError(
                f"role {role!r} is unknown: workflow {name!r} declares {', '.join(declared) or 'no role'}",
                field="advantage_fn_args.rollout_roles",
                fix=f"did you mean {near[0]!r}?" if near else "name a role of the workflow's class attribute `roles`",
            )
