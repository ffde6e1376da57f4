"""Connections to the agents on the hosts: start an agent, talk to it, reconnect, and let it go; no restarts, no verdicts.

May import: orchestrator.backends, orchestrator.errors, worker.host.forkserver.warm_socket, worker.machine, worker.protocol.
"""
