"""The table of policy losses, importable without importing any loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rftd.ops.errors import ConfigError
from rftd.ops.plugins import Plugins
from rftd.streams.spec.spec import AlgorithmSpec
from rftd.workers.learning.algorithms.registry import lookup
from rftd.workers.learning.losses.loss_source import open_loss_source, outlined_loss
from rftd.workers.learning.losses.policy_loss import LossNeeds, PolicyLoss
from rftd.workers.workflows.source import source_name

_PACKAGE: Final = "rftd.workers.learning.losses"
"""Package of the built-in losses."""

# Names, not classes: an experiment file is checked in the daemon, which has no torch to import.
POLICY_LOSSES: Final = Plugins[PolicyLoss](
    "policy loss",
    group="rftd.policy_losses",
    table={
        "ppo": f"{_PACKAGE}.token_ratios:PpoLoss",
        "gspo": f"{_PACKAGE}.response_ratios:GspoLoss",
        "gmpo": f"{_PACKAGE}.response_ratios:GmpoLoss",
        "vespo": f"{_PACKAGE}.response_ratios:VespoLoss",
        "cispo": f"{_PACKAGE}.weighted_gradients:CispoLoss",
        "sapo": f"{_PACKAGE}.token_ratios:SapoLoss",
        "topr": f"{_PACKAGE}.weighted_gradients:ToprLoss",
        "opmd": f"{_PACKAGE}.weighted_gradients:OpmdLoss",
        "sppo": f"{_PACKAGE}.token_ratios:SppoLoss",
        "rec": f"{_PACKAGE}.weighted_gradients:RecLoss",
        "reinforce": f"{_PACKAGE}.weighted_gradients:ReinforceLoss",
        "importance_sampling": f"{_PACKAGE}.token_ratios:ImportanceSamplingLoss",
        "m2po": f"{_PACKAGE}.mini_batch_masks:M2poLoss",
        "clip_cov": f"{_PACKAGE}.mini_batch_masks:ClipCovLoss",
        "kl_cov": f"{_PACKAGE}.mini_batch_masks:KlCovLoss",
        "dppo": f"{_PACKAGE}.token_ratios:DppoLoss",
        "probability_clip": f"{_PACKAGE}.token_ratios:ProbabilityClipLoss",
        "mix": f"{_PACKAGE}.mix:MixLoss",
        "mix_chord": f"{_PACKAGE}.mix:MixChordLoss",
        "echo": f"{_PACKAGE}.echo:EchoLoss",
        "dpo": f"{_PACKAGE}.preference_losses:DpoLoss",
        "ipo": f"{_PACKAGE}.preference_losses:IpoLoss",
        "simpo": f"{_PACKAGE}.preference_losses:SimpoLoss",
        "orpo": f"{_PACKAGE}.preference_losses:OrpoLoss",
        "kto": f"{_PACKAGE}.preference_losses:KtoLoss",
        "sft": f"{_PACKAGE}.sft:SftLoss",
        "sft_is": f"{_PACKAGE}.sft:SftIsLoss",
        "sft_phi": f"{_PACKAGE}.sft:SftPhiLoss",
    },
)
"""Policy losses by name: built-in ones, and plug-ins of the entry-point group `rftd.policy_losses`."""


def compares_pairs(name: str) -> bool:
    """True for a built-in loss that compares chosen with rejected responses."""
    # builtin first: load would import a third party's module, and this is asked of every file that is submitted.
    return POLICY_LOSSES.builtin(name) and LossNeeds.of(POLICY_LOSSES.load(name)).pairs


def trains_observations(name: str) -> bool:
    """True for a built-in loss of tokens written by the environment, too."""
    return POLICY_LOSSES.builtin(name) and LossNeeds.of(POLICY_LOSSES.load(name)).observations


def tells_labels(name: str) -> bool:
    """True for a built-in loss that needs labels of desirable responses, in pairs or single."""
    return compares_pairs(name) or (POLICY_LOSSES.builtin(name) and LossNeeds.of(POLICY_LOSSES.load(name)).labels)


def policy_loss(spec: AlgorithmSpec, sources: Mapping[str, str], *, runs: bool = True) -> PolicyLoss:
    """Builds the algorithm's policy loss. Raises ConfigError for an unknown name or unfit arguments.

    `sources` are the texts of Python files by name; without `runs`, a loss of a source is only outlined.
    In older logs `probability_clip` was named `ipo`: under an algorithm of rollouts the name means that loss.
    """
    name = spec.policy_loss
    arguments = spec.policy_loss_args
    if (source := source_name(name)) is not None:
        if source.file not in sources:
            problem = f"{source.file} is not among the experiment's sources"
            raise ConfigError(problem, field="algorithm.policy_loss_fn", fix="submit it with `rftd submit`")
        text = sources[source.file]
        return open_loss_source(source, text, arguments) if runs else outlined_loss(source, text)
    if name == "ipo" and lookup(spec.kind).rows != "dpo":
        name = "probability_clip"
        arguments = {argument.removeprefix("ipo_"): value for argument, value in arguments.items()}
    return POLICY_LOSSES.open(name, arguments)
