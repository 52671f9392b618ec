"""The algorithms: the parts that each takes by default, what it needs, where it comes from.

policy_gradients  of rollouts that the current weights drew
off_policy        of rollouts that older weights drew
supervised        of dataset rows and of teachers
"""
