"""Experiments as events from anywhere: commands sent by other programs as records in the log. In reading order:

request_service `RequestService`: reads requests as the API does, carries them out, and answers refusals
"""
