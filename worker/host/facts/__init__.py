"""Finds out about the host, its GPUs, and the program and the TensorFlow that will run on it.

May import: worker.host.network, worker.host.processes, worker.machine, worker.protocol, worker.settings, worker.task.patches.
"""
