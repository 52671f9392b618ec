"""Serving: the explorers of a stage answer whoever asks over HTTP, and learn from what they are told of it.

In reading order:

history        `History`: the answers, their feedback, and the rows that were committed, on disk
conversations  `Conversations`: a lease of a row becomes the experiences of its conversations
server         `ConversationServer`: the OpenAI-compatible server, with `/feedback` and `/commit`
"""
