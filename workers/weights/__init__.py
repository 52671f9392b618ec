"""Weights: transport of a weight version from the trainer to explorers.

tensor_bytes    one tensor as bytes, independent of any library
torch_bytes     torch's tensors as bytes and back, without a copy on the CPU
parked_tensors  tensors moved to the host for a while, to free a device
finite          whether a tensor is free of NaN and infinities
adapter         low-rank adapters as tensors
manifest        the tensors of a version, and the manifest's id
checksum        a text over all tensors, in four forms, or of a name
bit_sums        sums for the checksum, computed on the tensors' device
tensor_digests  the checksum of torch's tensors
channel         the seam: publish, holds, open, retire
checkpoint      the channel `checkpoint`: safetensors files in a folder
safetensors the safetensors format, written and read without another library
memory          the channel `memory`: one mapped file per version for all workers of a machine
mapped_file     a mapped file: layout, lock, and reuse as a buffer
device          the channel `nccl`: versions stay on the trainer's device, and are sent on request
tensor_link     the transfer: a rendezvous, and a process group of two
service         the channel `service`: a name at the training service, and no bytes
opened_tensors  announced weights as torch's tensors, for engines
registry        the table of channels
shards          tensors in parts, a safetensors file of each rank and one manifest: written, read in other parts
"""
