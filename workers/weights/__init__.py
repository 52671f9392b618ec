"""How a weight version gets from the trainer to explorers.

manifest     what an announced version consists of
checksum     fast and cryptographic digests of named tensors
checkpoint   the channel of that name: safetensors folders
"""
