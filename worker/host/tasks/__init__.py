"""The tasks of one host. Begin with launcher.py: the life of a task, from top to bottom. log_files.py and log_forwarder.py: its output."""
