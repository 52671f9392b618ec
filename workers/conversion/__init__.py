"""Conversion: checkpoints of several trainers, turned into folders that transformers loads, without torch.

In reading order:

conversion   checkpoints below a folder: found, classified by form, converted one by one
hf_folder    the written folder: configuration, tokenizer, weights; whole or absent
whole_tensor  a tensor in parts, read in blocks that fit into memory
native_checkpoint rftd's own checkpoints, of one rank or several
fsdp         FSDP's files, one of each rank
distributed  folders of torch.distributed.checkpoint, as written by Megatron
megatron     Megatron's names and fused tensors, translated to transformers'
torch_file   the archive written by torch.save
pickled      pickles, read as inert objects: nothing in them is imported or called
"""
