"""Names and defaults of algorithms, without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from synthetic.daemon.third_party import install

from rftd.ops.errors import ConfigError
from rftd.workers.learning.algorithms.advantages import ADVANTAGES
from rftd.workers.learning.algorithms.registry import lookup, names


def test_grpo_has_the_published_defaults() -> None:
    grpo = lookup("grpo")
    assert (grpo.advantage, grpo.policy_loss, grpo.kl_loss, grpo.entropy_loss) == ("grpo", "ppo", "k2", "default")
    assert (grpo.repeat_times, grpo.sample_strategy, grpo.loss_agg_mode) == (8, "default", "token-mean")
    assert grpo.kl_loss_args == {"kl_coef": 0.001}
    assert grpo.needs.groups
    assert grpo.needs.old_logprobs
    assert not grpo.needs.critic


def test_luspo_gives_each_token_of_a_long_response_as_much_as_one_of_a_short_one() -> None:
    """Against gspo, whose loss of a response it multiplies with the response's length."""
    import torch

    from rftd.workers.learning.losses import from_tensors

    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]])
    old = torch.full((2, 4), -1.0, dtype=torch.float64)
    given = {"old_logprobs": old, "mask": mask, "advantages": torch.tensor([0.7, -1.0], dtype=torch.float64)}
    luspo = lookup("luspo")
    assert (luspo.policy_loss, luspo.advantage) == ("gspo", "grpo")
    slopes = []
    for mode in (luspo.policy_loss_args["loss_agg_mode"], lookup("gspo").loss_agg_mode):
        logprobs = old.clone().requires_grad_()
        loss, _ = from_tensors.policy_loss("gspo", logprobs=logprobs, loss_agg_mode=mode, **given)
        slopes.append(torch.autograd.grad(loss, logprobs)[0])
    lengths = mask.sum(1, keepdim=True)
    torch.testing.assert_close(slopes[0], slopes[1] * lengths)


def test_sft_needs_no_rollouts() -> None:
    assert lookup("sft").policy_loss == "sft"
    assert not lookup("sft").needs.rollouts


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="grpoo") as raised:
        lookup("grpoo")
    assert raised.value.fix
    assert "'grpo'" in raised.value.fix


def test_an_algorithm_of_a_third_party_is_found(tmp_path: Path) -> None:
    code = (
        "from rftd.workers.learning.algorithms.definition import AlgorithmDefinition\n"
        "MINE = AlgorithmDefinition(name='mine', summary='', source='', policy_loss='ppo')\n"
        "ODD = 3\n"
    )
    points = {"mine": "mine_algorithm:MINE", "odd": "mine_algorithm:ODD"}
    install(tmp_path, "mine_algorithm", code, {"rftd.algorithms": points})
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from rftd.ops.errors import ConfigError\n"
        "from rftd.workers.learning.algorithms.registry import lookup, names\n"
        "import rftd.workers.learning.losses.objective\n"
        "assert lookup('mine').name == 'mine' and 'mine' in names()\n"
        "try:\n    lookup('odd')\n"
        "except ConfigError as error:\n    assert 'int' in error.what\n"
        "else:\n    raise AssertionError\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-P", "-c", script], check=True, timeout=240)


@pytest.mark.parametrize("name", names())
def test_every_part_of_an_algorithm_takes_its_default_arguments(name: str) -> None:
    from rftd.streams.spec.spec import AlgorithmSpec
    from rftd.workers.learning.losses.objective import Objective

    found = lookup(name)
    ADVANTAGES.open(found.advantage, found.advantage_args)
    Objective.of(
        AlgorithmSpec(
            kind=name,
            policy_loss=found.policy_loss,
            policy_loss_args=found.policy_loss_args,
            kl_loss=found.kl_loss,
            kl_loss_args=found.kl_loss_args,
            entropy_loss=found.entropy_loss,
            entropy_loss_args=found.entropy_loss_args,
            loss_agg_mode=found.loss_agg_mode,
        )
    )
