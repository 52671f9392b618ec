"""Section `policy`, rftd only: how far explorers run ahead, and which experiences may be trained. One class per kind.

The fields of a built-in kind are the arguments declared by the policy (`workers/control/policies`), with defaults and
bounds: a new policy needs no change here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, cast

import msgspec
from pydantic import create_model

from rftd.daemon.config.schema.section import Args, Count, Natural, Section, any_of, argument_field
from rftd.streams.spec.declaration import ARGUMENTS, PLUGIN
from rftd.streams.spec.sections import Synchronizer
from rftd.workers.control.policies.paced import Paced
from rftd.workers.control.policies.registry import BUILT_IN, built_in


class AnyPolicy(Section):
    """The fields common to all kinds."""

    max_staleness: Natural | None = None
    """Staleness bound in weight versions; none: the smallest bound that the synchronizer allows."""
    min_group_members: Count | None = None
    """Smaller groups are retired; none: 2, or 1 if a group is one rollout."""
    kind: str


class PluginPolicy(AnyPolicy):
    """A third-party policy, named by an entry point in the group `rftd.policies`."""

    kind: Literal["plugin"]
    name: Annotated[str, PLUGIN]
    """Name of the entry point."""
    args: Annotated[Args, ARGUMENTS] = {}
    """Arguments of the policy."""


def fields_of(policy: type[Paced]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Returns the policy's arguments that a file can set: all except those derived from the synchronisation
    schedule.
    """
    scheduled = policy.scheduled(Synchronizer(sync_method="checkpoint"))
    return tuple(field for field in msgspec.structs.fields(policy.arguments) if field.name not in scheduled)


def section_of(kind: str, policy: type[Paced]) -> type[AnyPolicy]:
    """Returns the section of one kind, made from the arguments declared by the policy."""
    fields: dict[str, Any] = {
        field.name: argument_field(field.type, ... if field.default is msgspec.NODEFAULT else field.default)
        for field in fields_of(policy)
    }
    # Tagged by the registry's name, so that a class may serve two kinds.
    fields["kind"] = (Literal[kind], ...)
    return cast(
        type[AnyPolicy], create_model(f"{policy.__name__}Policy", __base__=AnyPolicy, __doc__=policy.__doc__, **fields)
    )


POLICY_KINDS: Final[dict[str, type[AnyPolicy]]] = {
    **{kind: section_of(kind, policy) for kind in BUILT_IN if (policy := built_in(kind)) is not None},
    "plugin": PluginPolicy,
}
"""Sections of policies, by kind."""


if TYPE_CHECKING:
    Policy: TypeAlias = AnyPolicy
else:
    Policy = any_of(POLICY_KINDS)
