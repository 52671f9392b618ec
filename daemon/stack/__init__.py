"""A real Kafka and a real Postgres on the local machine, for development and tests. In reading order:

kafka              `KafkaBroker`: Apache Kafka in one process, with files, jars and Java
postgres           `PostgresServer`: one cluster; choice of binaries, and the user running them
process            a server in a folder, found again by later commands; exclusive between processes
ports              ports chosen once and stored
pair               `Stack`: both servers, for `rftd stack`; or one, as the child of a supervisor
"""
