"""The directory that a task has last on its `sys.path`. It offers one name to the user's code: `worker`.

May import: nothing.
"""
