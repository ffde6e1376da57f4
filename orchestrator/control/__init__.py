"""Runs a run: starts its controller, starts agents and tasks, steps the state with each event, and answers requests from other processes.

May import: orchestrator.backends, orchestrator.backends.connection, orchestrator.checks, orchestrator.errors, orchestrator.model,
    orchestrator.record, worker.machine, worker.protocol.
"""
