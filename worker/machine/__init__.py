"""Asks this machine and its kernel: clock, cores, memory, directories, file systems, threads and TPUs.

May import: worker.protocol.
"""
