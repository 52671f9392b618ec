"""Figures of steps and evaluations. In reading order:

step_figures  the main figures of a training step, whatever their names in the engine
reward_parts  the named parts of rewards, as figures of steps and evaluations
estimators    estimates from samples: of several tries, with their uncertainty
eval_answers  the answers kept by an evaluation, and their selection
eval_figures  the figures of an evaluation beside its score
"""
