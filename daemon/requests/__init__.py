"""Experiments as events from anywhere: what other programs ask for by records in the log. In reading order:

asked        a CloudEvents object as a command with its body, checked as the API checks one
desk         `RequestDesk`: carries out what is open, one after the other, and answers what is refused
"""
