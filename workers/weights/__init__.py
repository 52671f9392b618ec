"""Weights: the way of a weight version from the trainer to explorers.

tensor_bytes    one tensor as bytes, whatever library it came from
torch_bytes     tensors of torch as such bytes and back, without a copy on the CPU
parked_tensors  tensors that leave their device to others for a while
finite          whether a tensor holds numbers alone
adapter         low-rank adapters as such tensors
manifest        what a version consists of, and its id
checksum        one text over all tensors, in four forms, or of a name
bit_sums        sums for it that are made on the tensors' device
tensor_digests  it, of tensors of torch
channel         the seam: publish, holds, open, retire
checkpoint      the channel `checkpoint`: safetensors files in a folder
safetensors     that file format, written and read without another library
memory          the channel `memory`: one mapped file per version for all workers of a machine
mapped_file     such a file: its layout, its lock, its life as a buffer
device          the channel `nccl`: versions stay on the trainer's device, and go to whoever comes
tensor_link     how they go: a rendezvous, and a process group of two
service         the channel `service`: a name at the service that trains them, and no bytes
opened_tensors  what an engine that runs on torch opens
registry        the table of channels
shards          tensors in parts, a safetensors file of each rank and one manifest: written, read in other parts
"""
