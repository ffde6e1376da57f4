"""Measures and reports a training from within its task: steps, waits, reports, profiles, TensorBoard, membership of the cluster.

`meetings` counts in TensorFlow what a task waits for, and `step_times` folds the counts into windows.

May import: worker.protocol.step_sums, worker.protocol.task_files, worker.task.failure, worker.task.patches, worker.task.shared.
"""
