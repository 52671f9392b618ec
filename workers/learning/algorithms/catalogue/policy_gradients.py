"""Algorithms for rollouts that the current weights sampled: how good each was, and how far one step may go."""

from __future__ import annotations

from typing import Final

import msgspec

from rftd.workers.learning.algorithms.definition import AlgorithmDefinition, Needs

GRPO: Final = AlgorithmDefinition(
    name="grpo",
    summary="Advantage = reward relative to its group, in standard deviations; PPO's clipped policy loss.",
    when="The first choice for tasks with a verifiable reward: no critic, few settings.",
    source="Shao et al. 2024, DeepSeekMath, arXiv 2402.03300",
    repeat_times=8,  # as in the guides' examples; two are the least
    advantage="grpo",
    policy_loss="ppo",
    policy_loss_args={"clip_range": 0.2},
    kl_loss="k2",
    kl_loss_args={"kl_coef": 0.001},
    entropy_loss="default",
    entropy_loss_args={"entropy_coef": 0.0},
    needs=Needs(groups=True, old_logprobs=True, reference=True),
)

PPO: Final = AlgorithmDefinition(
    name="ppo",
    summary="Generalised advantages of a critic, whitened over the batch; PPO's clipped policy loss.",
    source="Schulman et al. 2017, arXiv 1707.06347; advantages: Schulman et al. 2016, arXiv 1506.02438",
    when="Rewards that come late in long answers, or one answer to a task: a critic tells good tokens from bad ones.",
    advantage="ppo",
    advantage_args={"gamma": 1.0, "lam": 1.0},
    policy_loss="ppo",
    policy_loss_args={"clip_range": 0.2},
    kl_loss="k2",
    kl_loss_args={"kl_coef": 0.001},
    entropy_loss="default",
    entropy_loss_args={"entropy_coef": 0.0},
    needs=Needs(old_logprobs=True, reference=True, critic=True),
)

# Kept beside grpo because experiment files, and logs of old experiments, name it.
GRPO_VERL: Final[AlgorithmDefinition] = msgspec.structs.replace(
    GRPO,
    name="grpo_verl",
    summary="grpo under its older name: the advantages are the same.",
    when="Files that were written for it; otherwise use grpo.",
    advantage="grpo_verl",
)

DR_GRPO: Final = AlgorithmDefinition(
    name="dr_grpo",
    summary="Advantage = reward minus the group's mean, not divided by a std; sums over tokens by a constant length.",
    source="Liu et al. 2025, Understanding R1-Zero-Like Training, arXiv 2503.20783",
    when="Like grpo, when answers get longer without getting better. Set loss_scale_factor to the maximum length of an "
    "answer in tokens: without it, each batch is divided by its own longest one.",
    repeat_times=8,
    advantage="grpo",
    advantage_args={"std_cal_level": "none"},
    policy_loss="ppo",
    policy_loss_args={"clip_range": 0.2},
    loss_agg_mode="seq-mean-token-sum-norm",
    needs=Needs(groups=True, old_logprobs=True),
)

DAPO: Final = AlgorithmDefinition(
    name="dapo",
    summary="GRPO with a clip that is wider above 1 than below, and no KL to a reference.",
    source="Yu et al. 2025, DAPO, arXiv 2503.14476",
    when="Long chains of thought, where grpo loses entropy. With advantage_fn_args {std_threshold: 0, "
    "max_response_tokens: 20480, overlong_buffer: 4096} it is the whole method of the paper: groups with equal "
    "rewards are left out, and overlong answers lose reward; with mask_truncated: true, answers that were cut off are "
    "not trained.",
    repeat_times=16,
    advantage="grpo",
    policy_loss="ppo",
    policy_loss_args={"clip_range_low": 0.2, "clip_range_high": 0.28},
    entropy_loss="default",
    entropy_loss_args={"entropy_coef": 0.0},
    needs=Needs(groups=True, old_logprobs=True),
)

GSPO: Final = AlgorithmDefinition(
    name="gspo",
    summary="GRPO's advantages; PPO's clip on the ratio of whole responses; each response counts the same.",
    source="Zheng et al. 2025, GSPO, arXiv 2507.18071",
    when="Long responses, mixtures of experts, and engines whose log-probabilities differ a little from the trainer's.",
    repeat_times=2,
    advantage="grpo",
    policy_loss="gspo",
    loss_agg_mode="seq-mean-token-mean",
    kl_loss="k2",
    kl_loss_args={"kl_coef": 0.001},
    entropy_loss="default",
    entropy_loss_args={"entropy_coef": 0.0},
    needs=Needs(groups=True, old_logprobs=True, reference=True),
)

LUSPO: Final = AlgorithmDefinition(
    name="luspo",
    summary="Like gspo, with the loss of each response times its length: each token counts the same.",
    source="Liu et al. 2026, Length-Unbiased Sequence Policy Optimization, arXiv 2602.05261",
    when="Like gspo, when it makes responses shorter: gspo gives a token of a long response less weight.",
    repeat_times=8,
    advantage="grpo",
    policy_loss="gspo",
    policy_loss_args={"loss_agg_mode": "seq-mean-token-sum"},
    loss_agg_mode="seq-mean-token-sum",
    needs=Needs(groups=True, old_logprobs=True),
)

VESPO: Final = AlgorithmDefinition(
    name="vespo",
    summary="GRPO's advantages; the policy gradient, weighted by a smooth function of the whole response's ratio.",
    source="Shen et al. 2026, VESPO, arXiv 2602.10693",
    when="Asynchronous training with responses that are versions old: weights fade out, without a hard bound.",
    repeat_times=8,
    advantage="grpo",
    policy_loss="vespo",
    policy_loss_args={"k_pos": 2.0, "lambda_pos": 3.0, "k_neg": 3.0, "lambda_neg": 2.0},
    needs=Needs(groups=True, old_logprobs=True),
)

GMPO: Final = AlgorithmDefinition(
    name="gmpo",
    summary="GRPO's advantages; the geometric mean of each response's clipped ratios; each response counts the same.",
    source="Zhao et al. 2025, GMPO, arXiv 2507.20673",
    when="Like gspo, with a clip at each token: a few extreme ratios neither block a response nor dominate it.",
    repeat_times=8,
    advantage="grpo",
    policy_loss="gmpo",
    policy_loss_args={"clip_range_low": 0.4, "clip_range_high": 0.4},
    loss_agg_mode="seq-mean-token-mean",
    needs=Needs(groups=True, old_logprobs=True),
)

CISPO: Final = AlgorithmDefinition(
    name="cispo",
    summary="GRPO's advantages; the policy gradient of every token, weighted by a clipped ratio.",
    source="MiniMax 2025, MiniMax-M1, arXiv 2506.13585",
    when="Rare but decisive tokens, which PPO's clip would leave without a gradient.",
    repeat_times=2,
    advantage="grpo",
    policy_loss="cispo",
    policy_loss_args={"clip_range_low": 1.0, "clip_range_high": 0.28},
    kl_loss="k2",
    kl_loss_args={"kl_coef": 0.001},
    entropy_loss="default",
    entropy_loss_args={"entropy_coef": 0.0},
    needs=Needs(groups=True, old_logprobs=True, reference=True),
)

SAPO: Final = AlgorithmDefinition(
    name="sapo",
    summary="GRPO's advantages; a gate that fades as the ratio leaves 1, faster where A < 0; responses count alike.",
    source="Gao et al. 2025, SAPO, arXiv 2511.20347",
    when="Where a hard clip throws away too much: off-policy data, mixtures of experts.",
    repeat_times=2,
    advantage="grpo",
    policy_loss="sapo",
    policy_loss_args={"tau_pos": 1.0, "tau_neg": 1.05},
    loss_agg_mode="seq-mean-token-mean",
    kl_loss="k2",
    kl_loss_args={"kl_coef": 0.001},
    entropy_loss="default",
    entropy_loss_args={"entropy_coef": 0.0},
    needs=Needs(groups=True, old_logprobs=True, reference=True),
)

REINFORCEPLUSPLUS: Final = AlgorithmDefinition(
    name="reinforceplusplus",
    summary="The reward, discounted to each token and whitened over the batch; PPO's clipped policy loss; no critic.",
    source="Hu 2025, REINFORCE++, arXiv 2501.03262",
    when="One answer to a task, or tasks of very different difficulty: the batch is the baseline, not the group.",
    repeat_times=2,
    advantage="reinforceplusplus",
    advantage_args={"gamma": 1.0},
    policy_loss="ppo",
    policy_loss_args={"clip_range": 0.2},
    kl_loss="k2",
    kl_loss_args={"kl_coef": 0.001},
    entropy_loss="default",
    entropy_loss_args={"entropy_coef": 0.0},
    needs=Needs(old_logprobs=True, reference=True),
)

REINFORCEPLUSPLUS_BASELINE: Final = AlgorithmDefinition(
    name="reinforceplusplus_baseline",
    summary="Advantage = reward minus the group's mean, whitened over the batch; PPO's clipped policy loss; no critic.",
    source="Hu 2025, REINFORCE++, arXiv 2501.03262",
    when="Like grpo, when many groups have almost equal rewards: grpo divides by their small std.",
    repeat_times=8,
    advantage="reinforceplusplus_baseline",
    policy_loss="ppo",
    policy_loss_args={"clip_range": 0.2},
    kl_loss="k2",
    kl_loss_args={"kl_coef": 0.001},
    needs=Needs(groups=True, old_logprobs=True, reference=True),
)

RLOO: Final = AlgorithmDefinition(
    name="rloo",
    summary="Advantage = reward minus the mean of the group's other rewards, not divided by a std; PPO's clipped loss.",
    source="Ahmadian et al. 2024, Back to Basics, arXiv 2402.14740",
    when="Rewards whose size means something: grpo's division by the std would hide it.",
    repeat_times=2,
    advantage="rloo",
    policy_loss="ppo",
    policy_loss_args={"clip_range": 0.2},
    kl_loss="k2",
    kl_loss_args={"kl_coef": 0.001},
    entropy_loss="default",
    entropy_loss_args={"entropy_coef": 0.0},
    needs=Needs(groups=True, old_logprobs=True, reference=True),
)

OPO: Final = AlgorithmDefinition(
    name="opo",
    summary="Advantage = reward minus the group's mean weighted by length; PPO's clipped policy loss; no KL.",
    source="Hao et al. 2025, OPO, arXiv 2505.23585",
    when="On policy, with answers of very different lengths: long ones weigh more in the baseline, as in the gradient.",
    repeat_times=8,
    advantage="opo",
    policy_loss="ppo",
    policy_loss_args={"clip_range": 0.2},
    needs=Needs(groups=True, old_logprobs=True),
)

MAXRL: Final = AlgorithmDefinition(
    name="maxrl",
    summary="Advantage = (reward - the group's mean) / the mean; PPO's clipped policy loss; no KL.",
    source="Tajwar et al. 2026, MaxRL, arXiv 2602.02710",
    when="Rewards of 0 and 1 with tasks seldom solved: one success in many rollouts weighs as much as it is rare.",
    repeat_times=8,
    advantage="maxrl",
    policy_loss="ppo",
    policy_loss_args={"clip_range": 0.2},
    needs=Needs(groups=True, old_logprobs=True),
)

HIERARCHICAL_GRPO: Final = AlgorithmDefinition(
    name="hierarchical_grpo",
    summary="Advantage = reward minus the mean of the same role, in the group or in the rollout; PPO's clipped loss.",
    source="Prime Intellect 2026, prime-rl, hierarchical_grpo",
    when="Several agents in one rollout, of whom some work on what another one made: a proposer and its solvers. Name "
    "those in advantage_fn_args.rollout_roles.",
    repeat_times=8,
    advantage="hierarchical_grpo",
    policy_loss="ppo",
    policy_loss_args={"clip_range": 0.2},
    needs=Needs(groups=True, old_logprobs=True),
)

RAE: Final = AlgorithmDefinition(
    name="rae",
    summary="Advantage = reward minus a moving average of the same role's rewards; PPO's clipped policy loss; no KL.",
    source="Liu et al. 2025, SPIRAL, arXiv 2506.24119",
    when="Self-play, above all zero-sum games: the rewards of a rollout cancel out, and so would their mean.",
    repeat_times=1,
    advantage="rae",
    policy_loss="ppo",
    policy_loss_args={"clip_range": 0.2},
    needs=Needs(old_logprobs=True),
)

ECHO: Final = AlgorithmDefinition(
    name="echo",
    summary="GRPO's advantages and PPO's clipped loss, and the likelihood of what the environment answered.",
    source="Shrivastava et al. 2026, ECHO, arXiv 2605.24517",
    when="Agents with tools or a terminal whose rollouts seldom succeed: what the environment answers teaches too.",
    repeat_times=8,
    advantage="grpo",
    policy_loss="echo",
    policy_loss_args={"alpha": 0.1, "clip_range": 0.2},
    needs=Needs(groups=True, old_logprobs=True),
)

GPG: Final = AlgorithmDefinition(
    name="gpg",
    summary="Advantage = reward minus the group's mean, scaled for groups that teach nothing; plain policy gradient.",
    source="Chu et al. 2025, GPG, arXiv 2504.02546",
    when="The fewest parts: no ratio, no clip, no KL. On-policy only, because nothing limits how far a step goes.",
    repeat_times=8,
    advantage="gpg",
    policy_loss="opmd",
    policy_loss_args={"tau": 0.0},  # -A logprob
    needs=Needs(groups=True),
)

GDPO: Final = AlgorithmDefinition(
    name="gdpo",
    summary="Advantage = weighted sum of a reward's parts, each in its own standard deviations; PPO's clipped loss.",
    source="Liu et al. 2026, GDPO, arXiv 2601.05242",
    when="A reward of several parts, such as accuracy and format: in their sum, grpo would see the loudest alone. Name "
    "them in advantage_fn_args.weights.",
    repeat_times=8,
    advantage="gdpo",
    policy_loss="ppo",
    policy_loss_args={"clip_range": 0.2},
    needs=Needs(groups=True, old_logprobs=True),
)

PASS_AT_K: Final = AlgorithmDefinition(
    name="pass_at_k",
    summary="Advantage = that of sets of k answers, of which one must be right; PPO's clipped policy loss.",
    source="Chen et al. 2025, Pass@k Training, arXiv 2508.10751",
    when="Hard tasks on which grpo settles on one approach too early: the rarer a right answer, the more it counts.",
    repeat_times=8,
    advantage="pass_at_k",
    advantage_args={"k": 4},
    policy_loss="ppo",
    policy_loss_args={"clip_range": 0.2},
    needs=Needs(groups=True, old_logprobs=True),
)

MULTI_STEP_GRPO: Final = AlgorithmDefinition(
    name="multi_step_grpo",
    summary="The reward of a run's last step relative to the group's, given to each of its steps; PPO's clipped loss.",
    source="Pan et al. 2025, Trinity-RFT, arXiv 2505.17826",
    when="Workflows of several steps with one reward at the end.",
    repeat_times=8,
    advantage="step_wise_grpo",
    policy_loss="ppo",
    policy_loss_args={"clip_range": 0.2},
    kl_loss="k2",
    kl_loss_args={"kl_coef": 0.001},
    entropy_loss="default",
    entropy_loss_args={"entropy_coef": 0.0},
    needs=Needs(groups=True, old_logprobs=True, reference=True),
)

GIGPO: Final = AlgorithmDefinition(
    name="gigpo",
    summary="The advantage of a run in its group, plus that of a step among those there that began in the same state.",
    source="Feng et al. 2025, Group-in-Group Policy Optimization, arXiv 2505.10978",
    when="Environments of several steps whose states recur: games, web pages, tools.",
    repeat_times=8,
    advantage="gigpo",
    advantage_args={"omega": 1.0, "gamma": 1.0},
    policy_loss="ppo",
    policy_loss_args={"clip_range_low": 0.2, "clip_range_high": 0.2},
    kl_loss="k2",
    kl_loss_args={"kl_coef": 0.001},
    entropy_loss="default",
    entropy_loss_args={"entropy_coef": 0.0},
    needs=Needs(groups=True, old_logprobs=True, reference=True),
)

CLIP_COV: Final = AlgorithmDefinition(
    name="clip_cov",
    summary="GRPO's advantages and PPO's clip, without some tokens whose advantage and log-probability vary together.",
    source="Cui et al. 2025, The Entropy Mechanism of RL for Reasoning Language Models, arXiv 2505.22617",
    when="Like dapo, when entropy falls early: a very small share of the tokens causes the fall.",
    repeat_times=8,
    advantage="grpo",
    policy_loss="clip_cov",
    policy_loss_args={"clip_cov_ratio": 0.0002, "clip_cov_lb": 1.0, "clip_cov_ub": 5.0},
    needs=Needs(groups=True, old_logprobs=True),
)

KL_COV: Final = AlgorithmDefinition(
    name="kl_cov",
    summary="GRPO's advantages; the ratio without a clip; tokens of the largest covariance are pulled back.",
    source="Cui et al. 2025, The Entropy Mechanism of RL for Reasoning Language Models, arXiv 2505.22617",
    when="Like clip_cov, but steadier: the tokens are pulled back, not left out. On-policy only: there is no clip.",
    repeat_times=8,
    advantage="grpo",
    policy_loss="kl_cov",
    policy_loss_args={"kl_cov_ratio": 0.0002, "ppo_kl_coef": 1.0},
    needs=Needs(groups=True, old_logprobs=True),
)
