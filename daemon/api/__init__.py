"""The HTTP API of the daemon. In reading order:

app              `make_app`: the parts together
gate             what answers until the parts are there
services         what the routes are given
guard            hosts, origins, bearer token, size of bodies; before any route
problem          every error as RFC 9457 problem+json
body             JSON of a request, within limits
parameters       names, bounds and keys: what requests say beside their body
place            `?after=stream/partition@offset`
receipts         what commands answer
pages            what reads answer
live_page        a page for who watches it
wire             typed rows as JSON
commands         what every command shares: options of its route, key, longest time, receipt
experiments      routes: submit, list, get, pause, resume, cancel
queue            route: who of those that wait goes first
keeping          routes: archive, restore, remove
history          routes: steps, batches, evals
experiences      routes: experiences
experience_view  one of them with its tokens
event_pages      the log's records of one experiment, page by page
event_json       an event as JSON for people: arrays as their shape
events           routes: events and the live stream
why              route: what each role waits for
lineage          route: what a thing was made of, and what became of it
dead_letters     routes: what was set aside, retry, drop
log_lines        the workers' log files, merged by time
logs             route of those
readiness        the checks behind /readyz
probes           routes: livez, readyz, metrics, version
schema           OpenAPI of all that
"""
