"""The reads and commands of a daemon: declared once, served, and requested by clients. In reading order:

views/   the reads and commands, declared
page/    the views as HTML for people
api/     the views over HTTP
client/  the daemon's API from a program
"""
