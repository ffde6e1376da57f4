"""The commands of `orch`, a module for each: it reads its options, calls the rooms below and prints.

May import: orchestrator.backends, orchestrator.checks, orchestrator.cli, orchestrator.control, orchestrator.errors, orchestrator.model,
    orchestrator.record, orchestrator.sources, orchestrator.scale, orchestrator.verify, orchestrator.views, worker.formats,
    worker.host.facts.program_checks, worker.machine, worker.protocol, worker.settings.
"""
