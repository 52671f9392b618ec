"""A real Kafka and a real Postgres on this machine, for development and tests. In reading order:

kafka              `KafkaBroker`: Apache Kafka in one process; does it answer?
kafka_properties   its configuration file; its jars, resolved once, and the Java that runs them
postgres           `PostgresServer`: one cluster; which binaries, and the user that runs them
process            a server process that is found again
ports              ports that are chosen once and kept
file_lock          one at a time, between processes
pair               `Stack`: both, as `rftd stack` sees them; or one, as the child of a supervisor
"""
