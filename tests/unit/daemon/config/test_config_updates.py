"""`ppo_epochs` and `ppo_mini_batch_size`: where they may stand, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rftd.daemon.config.loading import Submission
from rftd.streams.spec.spec import TrainerSpec
from rftd.streams.spec.stage_parts import UpdatesSpec

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]
CONFIG = "trainer.trainer_config="
BATCH = "buffer.train_batch_size=24"


def trainer_of(load: Load, *overrides: str) -> TrainerSpec:
    return load(overrides=[BATCH, *overrides]).spec.stages[0].trainer


def test_one_step_unless_asked_for_more(load: Load) -> None:
    assert trainer_of(load).updates == UpdatesSpec(epochs=1, mini_batch_items=0, shuffle=False)
    assert trainer_of(load).critic_updates is None


@pytest.mark.parametrize(
    "overrides",
    [
        ["trainer.ppo_epochs=3", "trainer.ppo_mini_batch_size=8", "trainer.shuffle=true"],
        [CONFIG + "{actor_rollout_ref: {actor: {ppo_epochs: 3, ppo_mini_batch_size: 8, shuffle: true}}}"],
        [CONFIG + "{actor: {ppo_epochs: 3, ppo_mini_batch_size: 8, shuffle: true}}"],
        [
            CONFIG + "{actor: {ppo_epochs: 3, ppo_mini_batch_size: null}}",
            "trainer.ppo_mini_batch_size=8",
            "trainer.shuffle=true",
        ],
    ],
)
def test_the_guides_place_and_the_short_one(load: Load, overrides: list[str]) -> None:
    assert trainer_of(load, *overrides).updates == UpdatesSpec(epochs=3, mini_batch_items=8, shuffle=True)


def test_a_critic_has_the_policys_unless_it_has_its_own(load: Load) -> None:
    tree = CONFIG + "{actor: {ppo_epochs: 3, ppo_mini_batch_size: 8}, critic: {ppo_epochs: 5}}"
    found = trainer_of(load, "algorithm.advantage_fn=ppo", tree)
    assert found.critic_updates == UpdatesSpec(epochs=5, mini_batch_items=8)
    assert trainer_of(load, tree).critic_updates is None
    bad = CONFIG + "{critic: {ppo_mini_batch_size: 7}}"
    assert trainer_of(load, bad).critic_updates is None, "without a critic its section is not looked at"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["trainer.ppo_mini_batch_size=7"], ("trainer.ppo_mini_batch_size", "is 7", "24 items", "3 would be", "as 6")),
        (["trainer.ppo_mini_batch_size=32"], ("is 32", "24 items", "larger than the batch", "such as 24")),
        ([CONFIG + "{actor: {ppo_mini_batch_size: 7}}"], ("trainer.trainer_config.actor.ppo_mini_batch_size", "24")),
        (
            ["algorithm.advantage_fn=ppo", CONFIG + "{critic: {ppo_mini_batch_size: 9}}"],
            ("critic.ppo_mini_", "6 would"),
        ),
        (["trainer.ppo_epochs=0"], ("trainer.ppo_epochs", "0")),
        ([CONFIG + "{actor: {ppo_epochs: 0}}"], ("actor.ppo_epochs", "is 0", "a whole number of at least 1")),
        ([CONFIG + "{actor: {ppo_epochs: many}}"], ("actor.ppo_epochs", "'many'")),
        ([CONFIG + "{actor: {ppo_epochs: true}}"], ("actor.ppo_epochs", "True")),
        ([CONFIG + "{actor: {shuffle: 3}}"], ("actor.shuffle", "write true or false")),
        (["trainer.ppo_epochs=2", CONFIG + "{actor: {ppo_epochs: 3}}"], ("is 2", "actor.ppo_epochs is 3", "one of")),
    ],
)
def test_what_cannot_be_is_refused_with_the_numbers(
    errors: Errors, overrides: list[str], said: tuple[str, ...]
) -> None:
    (text,) = errors(overrides=[BATCH, *overrides])
    assert all(each in text for each in said), text


def test_a_loss_without_a_ratio_is_a_warning(load: Load) -> None:
    several = ["trainer.ppo_epochs=2"]

    def warned(*overrides: str) -> list[str]:
        return [each for each in load(overrides=[BATCH, *overrides]).warnings if "no ratio" in each]

    (text,) = warned("algorithm.policy_loss_fn=opmd", *several)
    assert "opmd" in text
    assert "trainer.ppo_epochs" in text
    assert warned("algorithm.policy_loss_fn=opmd") == [] == warned(*several)
    assert warned("algorithm.policy_loss_fn=opmd", "trainer.ppo_mini_batch_size=24") == []
    assert warned("algorithm.policy_loss_fn=opmd", "trainer.ppo_mini_batch_size=12") == [text]
