"""Finds the task that failed first, and what the user can do about it. Pure.

May import: orchestrator.errors, orchestrator.model.settings, orchestrator.model.state, orchestrator.model.task_names, worker.protocol,
    worker.settings.
"""
