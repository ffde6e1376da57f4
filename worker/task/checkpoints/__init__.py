"""Saves of a training, and the exact continuation from one. docs/exact.md says what is exact, and what is not.

May import: worker.formats, worker.machine, worker.protocol.task_files, worker.task.context, worker.task.failure, worker.task.input,
    worker.task.keras, worker.task.observe, worker.task.patches, worker.task.shared, worker.task.sigterm, worker.task.strategy.
"""
