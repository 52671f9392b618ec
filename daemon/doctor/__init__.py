"""`rftd doctor`: is this machine, this folder and this daemon fit to work? In reading order:

finding   what one check found, and its fix
machine   python, packages, disk, the data folder
cluster   Kafka, its topics, and Postgres
daemon    the port, the daemon that should be there
"""
