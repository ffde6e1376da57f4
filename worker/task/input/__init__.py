"""Divides the input of a training among the workers: datasets, files, the order of elements, and counts of what was read.

May import: worker.formats, worker.protocol.task_files, worker.task.context, worker.task.failure, worker.task.observe, worker.task.patches,
    worker.task.shared, worker.task.strategy.
"""
