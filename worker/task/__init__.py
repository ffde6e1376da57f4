"""Defines what runs inside a task: the bootstrap, and what `worker` offers to the user's script.

May import: worker.machine, worker.protocol.task_files, worker.settings, worker.task.fixture, worker.task.keras, worker.task.observe,
    worker.task.patches, worker.task.strategy.
"""
