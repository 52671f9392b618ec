"""Conversion: checkpoints of several trainers as folders that transformers loads, without torch.

In reading order:

conversion   checkpoints below a folder, found, told apart, converted one by one
hf_folder    the folder that is written: configuration, tokenizer, weights; whole or not there
whole_tensor  a tensor in parts, read in blocks that fit into memory
own          our own checkpoints, of one rank or several
fsdp         FSDP's files, one of each rank
distributed  folders of torch.distributed.checkpoint, as Megatron writes them
megatron     Megatron's names and fused tensors as those of transformers
torch_file   the archive that torch.save writes
pickled      pickles, read as inert objects: nothing in them is imported or called
"""
