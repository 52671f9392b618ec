"""The HTTP API of the daemon: the declarations of `rftd.daemon.http.views`, over HTTP. In reading order:

app              `make_app`: the parts composed, with counts and spans of requests
doorkeeper       authentication, by token or cookie; foreign hosts and pages are refused
guard            the layer around the app: doorkeeper, connections of a token, sizes, headers for browsers
login            the route at which a one-time link signs a browser in
opened_files     experiment files sent by `rftd studio FILE`, until a browser reads them
methods          HEAD and OPTIONS
services         the daemon as reads and commands see it: tables, log, commands
problem          every error as RFC 9457 problem+json
bodies           the body of a command, within limits: JSON, or an experiment file as YAML
routes           one route for each read and each command
departure        the wait for the end of a client's connection
file_response    an open file as a response, whole or a range
live_page        pages of experiments, read once for all listeners, and their new parts
stream           an experiment's page for followers, as server-sent events
changes          the ids of changed experiments, as server-sent events
pages            routes of the page for people, and its scripts and styles
run_pages        routes of a run's rollouts, drops and evaluations, for people
record_pages     routes of a run's configuration, history, lineage and timeline, for people
system_pages     route of the whole daemon, for people
studio_pages     route of the studio: a form made from the declared fields, for people
probes           routes: livez, readyz with its checks, metrics; and the answers before the API is ready
agents           routes: llms.txt and skill.md, every read and command by its URL
schema           OpenAPI of all routes
"""
