"""Several servers behind one address: HAProxy's configuration, and servers with a balancer on one machine by one
command.
"""
