"""Finds out before a run what will go wrong: `orch doctor` on machines, `orch shards` on the input, `orch tpu` on devices.

May import: orchestrator.errors, orchestrator.model, orchestrator.record.text, worker.formats, worker.protocol, worker.settings.
"""
