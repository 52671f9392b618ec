"""Algorithms for dataset rows and for teachers."""

from __future__ import annotations

from typing import Final

from rftd.workers.learning.algorithms.definition import AlgorithmDefinition, Needs

MIX: Final = AlgorithmDefinition(
    name="mix",
    summary="(1 - mu) GRPO of rollouts + mu SFT of an expert's rows, in each batch.",
    source="Pan et al. 2025, Trinity-RFT, arXiv 2505.17826",
    when="There are a few good answers of an expert, and rollouts alone seldom earn a reward.",
    repeat_times=8,
    advantage="grpo",
    policy_loss="mix",
    policy_loss_args={"mu": 0.1},
    kl_loss="k2",
    kl_loss_args={"kl_coef": 0.001},
    entropy_loss="mix",
    entropy_loss_args={"entropy_coef": 0.0},
    sample_strategy="mix",
    sample_strategy_args={"expert_data_ratio": 0.5, "sft_dataset_name": "sft_dataset"},
    needs=Needs(groups=True, old_logprobs=True, reference=True, expert_data=True),
)

MIX_CHORD: Final = AlgorithmDefinition(
    name="mix_chord",
    summary="Like mix; mu follows a schedule, and an expert's token counts by p (1 - p).",
    source="Zhang et al. 2025, CHORD, arXiv 2508.11408",
    when="Like mix, when the expert writes differently from the policy: it is followed at first, and less later.",
    repeat_times=8,
    advantage="grpo",
    policy_loss="mix_chord",
    policy_loss_args={
        "mu_warmup_steps": 0,
        "mu_decay_steps": 0,
        "mu_peak": 0.1,
        "mu_valley": 0.1,
        "enable_phi_function": True,
    },
    kl_loss="k2",
    kl_loss_args={"kl_coef": 0.001},
    entropy_loss="mix",
    entropy_loss_args={"entropy_coef": 0.0},
    sample_strategy="mix",
    sample_strategy_args={"expert_data_ratio": 0.5, "sft_dataset_name": "sft_dataset"},
    needs=Needs(groups=True, old_logprobs=True, reference=True, expert_data=True),
)

ON_POLICY_DISTILL: Final = AlgorithmDefinition(
    name="on_policy_distill",
    summary="Advantage = how much more likely the teacher finds each token; PPO's clipped policy loss; no reward.",
    source="Agarwal et al. 2024, GKD, arXiv 2306.13649",
    when="A larger model with the same tokenizer knows the task: it judges every token, not only the answer.",
    repeat_times=8,
    advantage="on_policy_distill",
    advantage_args={"kl_coef": 1.0},
    policy_loss="ppo",
    policy_loss_args={"clip_range": 0.2},
    needs=Needs(old_logprobs=True, teacher=True),
)

JSD: Final = AlgorithmDefinition(
    name="jsd",
    summary="Advantage = the policy gradient of the Jensen-Shannon divergence to a teacher; PPO's clipped policy loss.",
    source="Agarwal et al. 2024, GKD, arXiv 2306.13649",
    when="Like on_policy_distill, when the student should neither cover all that the teacher likes nor only a part.",
    repeat_times=8,
    advantage="jsd",
    advantage_args={"kl_coef": 1.0, "lambda_coef": 0.5},
    policy_loss="ppo",
    policy_loss_args={"clip_range": 0.2},
    needs=Needs(old_logprobs=True, teacher=True),
)

SFT: Final = AlgorithmDefinition(
    name="sft",
    summary="Supervised fine-tuning: raises the log-likelihood of the responses of a dataset.",
    source="Ouyang et al. 2022, InstructGPT, arXiv 2203.02155",
    when="Before reinforcement learning: a format or a skill that examples show.",
    policy_loss="sft",
    needs=Needs(rollouts=False),
)

CPT: Final = AlgorithmDefinition(
    name="cpt",
    summary="Continued pre-training: raises the log-likelihood of every token of the texts of a dataset.",
    source="Gururangan et al. 2020, Don't Stop Pretraining, arXiv 2004.10964",
    when="A language or a field that the base model has seen little of, before any fine-tuning.",
    policy_loss="sft",
    rows="cpt",
    needs=Needs(rollouts=False),
)

DPO: Final = AlgorithmDefinition(
    name="dpo",
    summary="Direct preference optimization: raises the likelihood of chosen responses over that of rejected ones.",
    source="Rafailov et al. 2023, arXiv 2305.18290",
    when="There are pairs of a better and a worse answer, but neither a reward nor rollouts.",
    repeat_times=2,  # two responses to each prompt
    policy_loss="dpo",
    policy_loss_args={"beta": 0.1, "label_smoothing": 0.0},
    kl_loss="k2",
    kl_loss_args={"kl_coef": 0.001},
    entropy_loss="default",
    entropy_loss_args={"entropy_coef": 0.0},
    rows="dpo",
    needs=Needs(rollouts=False, reference=True),
)

IPO: Final = AlgorithmDefinition(
    name="ipo",
    summary="Brings the log-ratio of chosen over rejected responses, relative to the reference, to 1 / (2 beta).",
    source="Azar et al. 2023, arXiv 2310.12036",
    when="Like dpo, when labels are few or always agree: dpo would drive the likelihoods apart without limit.",
    repeat_times=2,  # two responses to each prompt
    policy_loss="ipo",
    policy_loss_args={"beta": 0.1},
    rows="dpo",
    needs=Needs(rollouts=False, reference=True),
)

SIMPO: Final = AlgorithmDefinition(
    name="simpo",
    summary="Raises the mean log-probability of chosen responses over that of rejected ones, by a margin.",
    source="Meng et al. 2024, SimPO, arXiv 2405.14734",
    when="Like dpo, without the memory and the forward pass of a reference, and without its bias towards long answers.",
    repeat_times=2,  # two responses to each prompt
    policy_loss="simpo",
    policy_loss_args={"beta": 2.0, "gamma": 1.0},
    rows="dpo",
    needs=Needs(rollouts=False),
)

ORPO: Final = AlgorithmDefinition(
    name="orpo",
    summary="Supervised fine-tuning on chosen responses, whose odds are raised over those of rejected ones.",
    source="Hong et al. 2024, ORPO, arXiv 2403.07691",
    when="Preferences and a base model that was not fine-tuned before: one stage instead of sft and dpo.",
    repeat_times=2,  # two responses to each prompt
    policy_loss="orpo",
    policy_loss_args={"beta": 0.1},
    rows="dpo",
    needs=Needs(rollouts=False),
)

KTO: Final = AlgorithmDefinition(
    name="kto",
    summary="Each response by itself is a gain if desirable, else a loss, relative to how far the policy has moved.",
    source="Ethayarajh et al. 2024, KTO, arXiv 2402.01306",
    when="Answers have a thumbs up or down but no counterpart (schema_type: kto), or the labels of pairs are noisy.",
    repeat_times=2,  # two responses to each prompt, if its rows are pairs
    policy_loss="kto",
    policy_loss_args={"beta": 0.1},
    rows="dpo",
    other_rows=("kto",),
    needs=Needs(rollouts=False, reference=True),
)
