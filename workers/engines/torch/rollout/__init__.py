"""The `torch` rollout engine: continuous batching over any transformers causal language model.

In reading order:

arguments   its `extra_engine_args`, and its opening
engine      the asyncio front: `TorchRolloutEngine`
memory      the least memory of generation
loop        the decode thread: takes requests, swaps weights, delivers responses
batch       the running requests, which join, draw a token each per step, and leave
uncached    the slower computation: each request separately, with transformers' own cache or none
responses   draws tokens and records them in responses, for both computations
recordings  steps of a few shapes over tensors at fixed addresses, recorded and repeated
cuda_graphs such recordings on a GPU, and a model's reasons against them
rows        the requests on the rows of the cache: equal sequences share a row
network     the model: prefill, decode, new weights
fused       a leaner forward for Llama, Mistral, Qwen2 and Qwen3
cache       keys and values of the running requests, right-aligned at one shared column
attention   the attention of new tokens to the cache
adjust      biases and penalties of logits
draw        the next token of each row, and its log-probability
transfer    copies of drawn tokens to the host, and of new weights to a GPU
noise       the random numbers: a function of (seed, position)
running     a request in the engine, and the callers waiting for responses
trial       the comparison of the engine with the model at opening
"""
