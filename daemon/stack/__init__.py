"""A real Kafka and a real Postgres on this machine, for development and tests. In reading order:

kafka              `KafkaBroker`: Apache Kafka in one process, its files, its jars and the Java that runs them
postgres           `PostgresServer`: one cluster; which binaries, and the user that runs them
process            a server in a folder, whose process is found again; one at a time, between processes
ports              ports that are chosen once and kept
pair               `Stack`: both, as `rftd stack` sees them; or one, as the child of a supervisor
"""
