"""The HTTP API of the daemon: what `rftd.daemon.http.views` declares, over HTTP. In reading order:

app              `make_app`: the parts together, with counts and spans of requests
doorkeeper       who asks, by token or cookie; foreign hosts and pages are refused
guard            the layer around the app: doorkeeper, connections of a token, sizes, headers for browsers
login            the route at which a one-time link signs a browser in
methods          HEAD and OPTIONS
services         the daemon as reads and commands see it: tables, log, its commands
problem          every error as RFC 9457 problem+json
bodies           the body of a command, within limits: JSON, or an experiment file as YAML
routes           a route of each read and of each command
stream           a page for who watches it, as server-sent events
probes           routes: livez, readyz with its checks, metrics; and what answers until the parts are there
schema           OpenAPI of all that
"""
