"""The directory of a run: writes, reads, follows and locks its files, and prints from them.

May import: orchestrator.__version__, orchestrator.errors, orchestrator.model, orchestrator.record.text, worker.formats, worker.machine,
    worker.protocol.
"""
