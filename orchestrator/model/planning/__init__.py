"""Makes a plan of settings and hosts: addresses, GPUs, environments, and which worker reads which part of the input. Pure.

May import: orchestrator.errors, orchestrator.model.settings, orchestrator.model.slots, orchestrator.model.strategies,
    orchestrator.model.task_names, orchestrator.model.tpu_topology, worker.protocol, worker.settings.
"""
