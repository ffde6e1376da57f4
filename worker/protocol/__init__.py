"""The messages between controller, agents and tasks: their fields, their bytes, and the variables and files of a task. Pure.

May import: worker.settings.
"""
