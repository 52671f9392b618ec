"""What a response is worth.

In reading order:

reward       `Reward` and `RewardResult`: the seam
registry     every reward by name (entry-point group `rftd.rewards`)
scorer       opens a reward by name and turns whatever it does into a result or a RolloutError
unit         whether the units beside two numbers clash
number       numbers in text, compared by value
words        the one number in words, and the words in which a response closes
arithmetic   bounded arithmetic, exact where it can be
expression   expressions with variables, compared by value
collection   lists, sets, intervals, relations and choices, compared member by member
answer       the answer in a response, the truth in a reference solution, and whether they agree
exact_match  1 if the response is the truth
accuracy     1 if the answers agree
math_reward  accuracy, and whether think and answer tags are there
boxed        accuracy of the last boxed answer
form         whether the tags are there, alone

A new reward: one file, one line in `registry`, its goldens in tests/unit/workers/rewards.
"""
