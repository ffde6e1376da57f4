"""The state of a run: its tasks, its cluster, its end, and the events that change it. Pure values.

May import: orchestrator.model.planning, orchestrator.model.settings, orchestrator.model.strategies, worker.protocol.
"""
