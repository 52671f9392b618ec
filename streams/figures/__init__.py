"""Figures of steps and evaluations. In reading order:

step_figures  the telling figures of a training step, whatever their engine calls them
reward_parts  the named parts of rewards, as figures of steps and evaluations
estimators    estimates from samples: of several tries, with their uncertainty
eval_answers  the answers that an evaluation keeps, and which of many
eval_figures  the figures of an evaluation beside its score
"""
