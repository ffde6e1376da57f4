"""Decides without touching anything: settings, plan, state, causes and policy of a run. Pure: no I/O, no clock, no environment.

The modules here are tables and names that all rooms of the model use.

May import: orchestrator.errors, worker.protocol, worker.settings.
"""
