"""The reads and commands of a daemon: declared once, served, and asked for. In reading order:

views/   the reads and commands themselves
api/     that over HTTP
client/  the same from the other side
"""
