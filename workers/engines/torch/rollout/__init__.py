"""The `torch` rollout engine: continuous batching over any transformers causal language model.

In reading order:

arguments   its `extra_engine_args`, and its opening
engine      the asyncio front: `TorchRolloutEngine`
memory      the memory that generation takes at least
loop        the decode thread: takes requests, swaps weights, hands back responses
batch       the running requests, which join, draw a token each per step, and leave
alone       the slower way: each request by itself, with transformers' own cache or none
responses   drawn tokens as parts of responses, in both ways
recordings  steps of a few shapes over tensors that stay where they are, recorded and repeated
cuda_graphs those recordings on a GPU, and the reasons for which a model has none
rows        the requests on the rows of the cache: equal sequences share one
network     the model: prefill, decode, new weights
fused       a leaner forward for Llama, Mistral, Qwen2 and Qwen3
cache       keys and values of the running requests, right-aligned at one shared column
attention   the attention of new tokens to the cache
adjust      biases and penalties of logits
draw        the next token of each row, and its log-probability
transfer    drawn tokens on their way to the host, and new weights on theirs to a GPU
noise       the random numbers: a function of (seed, position)
running     a request on its way, and the callers that wait for its response
trial       the check at opening that all this fits the model
"""
