"""Megatron's layers as one of the ways in which the verl engine spreads a model: each tensor cut over some ranks.

verl opens the model with Megatron's classes and computes it. Weights and gradients have transformers' names outside of
them, in float32, so that optimizer, checkpoints and publishing are those of FSDP2.

In reading order:

sizes.py    which models and sizes can be trained so, and what is not installed (no torch)
layers.py   the layers without transformer-engine, with torch's attention
tensors.py  Megatron's fused parameters as tensors with transformers' names
model.py    verl's Megatron engine around a model of ours

Import `model` after `platform.choose_platform`.
"""
