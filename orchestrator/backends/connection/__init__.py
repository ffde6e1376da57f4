"""Connections to the agents on the hosts: start an agent, talk to it, reconnect, and let it go; no restarts, no verdicts.

May import: orchestrator.backends, orchestrator.errors, worker.host.forkserver.warm_socket,
    worker.host.network.dialler, worker.host.network.proof, worker.machine, worker.protocol.
"""
