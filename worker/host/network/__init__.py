"""Ports, addresses and connections of a host: the link to the controller, held ports, reachability, private networks.

May import: worker.host.processes, worker.machine, worker.protocol.
"""
