"""The algorithms: the parts that each takes by default, what it needs, where it comes from.

policy_gradients  for rollouts that the current weights sampled
off_policy        for rollouts that older weights sampled
supervised        for dataset rows and for teachers
"""
