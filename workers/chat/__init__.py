"""Text and tokens: tokenizers, and the model as a workflow sees it.

In reading order:

message         one message of a conversation, and how rows spell it
tokenizer       `Tokenizer`: text to ids and back, the chat template, end-of-sequence ids
byte_tokenizer  one id per byte, for the fake engine and tests: imports nothing
stage_tokenizer which tokenizer a stage has
hf_tokenizer    the tokenizer of a local model folder; imports transformers when it is opened
response        one answer of the model: text, tokens, log-probabilities, spans
model           `Model`: chat and complete over any rollout engine, with derived ids and seeds
"""
