"""orch: starts, watches and explains TensorFlow clusters. Importing this costs nothing."""

__version__ = "0.1.0"
