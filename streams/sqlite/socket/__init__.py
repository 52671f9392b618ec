"""The embedded log for other processes of this machine, over a Unix socket. In reading order:

frames       length-prefixed frames of bounded size
messages     requests and replies
address      where the socket lies and who may open it
door         who may append, and what clients remember when they come back
server       `LogServer`: serves any `EventLog`
connection   the client's side of one connection: pipelined requests
client       `SocketLog`: an `EventLog` that reconnects, retries and remembers heads
"""
