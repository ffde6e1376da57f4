"""Decides what happens next: `lifecycle.step` makes the next state of a run of an event. Pure.

Saves on order: `save_reasons` says what orders a save, `save_order` is the save itself, and `save_results` says how the attempt ends after
it. While the save goes on, it is `Cluster.saving`, and `deadlines` has its limits.

May import: orchestrator.errors, orchestrator.model.cause, orchestrator.model.planning, orchestrator.model.settings,
    orchestrator.model.state, orchestrator.model.strategies, orchestrator.model.task_names, worker.protocol.
"""
