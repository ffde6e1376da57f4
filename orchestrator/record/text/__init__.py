"""Makes texts without files: lines of bytes, folded output, tracebacks, tables, and sentences about events.

May import: orchestrator.model, worker.protocol.
"""
