"""The demo, in reading order: `model` (the tiny model and its tokenizer)."""
