"""The HTTP API of the daemon: what `rftd.daemon.views` declares, over HTTP. In reading order:

app              `make_app`: the parts together
services         the daemon as reads and commands see it: tables, log, its commands
guard            hosts, origins, bearer token, size of bodies; before any route
problem          every error as RFC 9457 problem+json
routes           a route of each read and of each command
body             JSON of a request, within limits
stream           a page for who watches it
readiness        the checks behind /readyz
probes           routes: livez, readyz, metrics; and what answers until the parts are there
schema           OpenAPI of all that
"""
