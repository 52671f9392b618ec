"""Ranks: a trainer engine that is many processes, and the checkpoints that they write together.

In reading order:

shards        tensors in parts, a safetensors file of each rank and one manifest over all: written, read in other parts
torch_shards  torch's tensors as such parts, whole or spread over ranks
"""
