"""Defines what the kernel offers for processes: start one, tie it to its owner's life, signal it, ask /proc about it. No task is known
here.

May import: worker.machine, worker.protocol.
"""
