"""`rftd doctor`: is this machine, this folder and this daemon fit to work? In reading order:

machine   python, packages, disk, the data folder
engines   devices, and which engines can run on them
cluster   the log and the database that lie elsewhere
daemon    the port, the daemon that should be there
"""
