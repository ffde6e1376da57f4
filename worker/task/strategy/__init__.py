"""Makes the strategy of a task and its servers, and sets up its devices, TPUs and time limits.

May import: worker.machine, worker.protocol.task_environment, worker.protocol.task_files, worker.settings, worker.task.context,
    worker.task.failure, worker.task.observe, worker.task.patches.
"""
