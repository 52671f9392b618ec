"""The Kafka backend of `EventLog`. In reading order:

settings    where the cluster is and how to log in: `host:port` text or a kafka:// URL
"""
