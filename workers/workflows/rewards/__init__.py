"""Rewards: each says what a response is worth.

In reading order:

reward              `Reward`: the seam, with the view of a rollout that some rewards ask for
registry            every reward by name (entry-point group `rftd.rewards`)
scorer              `Scorer`: a reward's calls, each turned into a result or a RolloutError
unit                the units beside two numbers, which may clash
number              numbers in text, compared by value
words               the one number in words, and the words in which a response closes
arithmetic          bounded arithmetic, exact where it can be
elementary          functions such as sin and ln, with 60 digits
expression          expressions with variables, compared by value
collection          lists, sets, intervals, relations and choices, compared member by member
rule_based          form, exact match, and agreement by value
answer              the answer in a response, the truth in a reference solution, and their agreement
countdown           expressions of given numbers that have a given value
math_verify_reward  accuracy by the library math-verify, in `math_verify_judge`'s process
reward_model        the output of a reward model, in `reward_model_process`'s process
llm_judge           the verdict of an auxiliary model, and its questions
line_process        a module in a process of its own that answers lines

A new reward: one file, one line in `registry`, its goldens in tests/unit/workers/workflows/rewards.
"""
