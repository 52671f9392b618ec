"""The fake engine: no model, everything else as in a real engine.

rollout  answers without a model
trainer  weights equal to a digest of the training data
"""
