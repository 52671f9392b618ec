"""How a weight version gets from the trainer to explorers.

manifest      manifest.json: what a version consists of
checksum      one number over all tensors
checkpoint    the channel `checkpoint`: safetensors files in a folder
"""
