"""Megatron's layers for the verl engine, each tensor divided over some ranks.

verl opens the model with Megatron's classes and computes it. Outside of the classes, weights and gradients have
transformers' names, in float32, and so optimizer, checkpoints and publishing are equal to those of FSDP2.

In reading order:

sizes.py    the trainable models and sizes, and missing packages (no torch)
tensors.py  Megatron's fused parameters as tensors with transformers' names
model.py    verl's Megatron engine, with changes: layers by torch without transformer-engine

Import `model` after `platform.choose_platform`.
"""
