"""The fake engine: no model, everything else as in earnest.

rollout  answers without a model
trainer  weights that are a digest of what was trained
"""
