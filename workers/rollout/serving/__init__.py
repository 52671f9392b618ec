"""Serving: the explorers of a stage answer clients over HTTP, and learn from the clients' feedback.

In reading order:

history        `History`: the answers, their feedback, and the committed rows, on disk
conversations  `Conversations`: a lease of a row becomes the experiences of its conversations
server         `ConversationServer`: the OpenAI-compatible server, with `/feedback` and `/commit`
"""
