"""Rewards: each scores a response.

In reading order:

reward              `Reward`: the seam, with the view of a rollout that some rewards use
registry            every reward by name (entry-point group `rftd.rewards`)
scorer              `Scorer`: a reward's calls, each turned into a result or a RolloutError
unit                the units beside two numbers, which may clash
number              numbers in text, compared by value
words               the one number in words, and the closing words of a response
arithmetic          bounded arithmetic, exact where possible
elementary          functions such as sin and ln, with 60 digits
expression          expressions with variables, compared by value
collection          lists, sets, intervals, relations and choices, compared member by member
rule_based          form, exact match, and agreement by value
answer              the answer in a response, the truth in a reference solution, and their agreement
countdown           expressions of given numbers with a target value
math_verify_reward  accuracy by the library math-verify, in `math_verify_judge`'s process
reward_model        the output of a reward model, in `reward_model_process`'s process
llm_judge           the verdict of an auxiliary model, and the judge's prompts
confined            a stranger's source text, in a sandbox for each response
code                a program in a sandbox against the tests of its row, run there by `code_cases`
tool_call           calls of functions compared with those of the row
rubric_judge        the rating of an auxiliary model by a row's rubrics
line_process        a module in a separate process, answering lines

A new reward: one file, one line in `registry`, its tests in tests/unit/workers/workflows/rewards, and its
row in docs/extending.md.
"""
