"""The embedded log for other processes of this machine, over a Unix socket. In reading order:

frames       length-prefixed frames of bounded size
messages     requests and replies
address      the socket's path, in a folder closed to other users
append_gate  the permission to append, and the heads remembered by returning clients
server       `LogServer`: serves any `EventLog`
connection   the client's side of one connection: pipelined requests
client       `SocketLog`: an `EventLog` with reconnects, retries and remembered heads
"""
