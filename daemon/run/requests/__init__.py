"""Experiments as events from anywhere: what other programs ask for by records in the log. In reading order:

desk         `RequestDesk`: reads requests as the API does, carries them out, and answers what is refused
"""
