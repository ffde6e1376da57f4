"""Shows a run while it goes on and afterwards: `orch top`, the page of `orch report`, its checkpoints, its placement, its profile.

May import: orchestrator.__version__, orchestrator.errors, orchestrator.model, orchestrator.record, worker.formats, worker.protocol.
"""
