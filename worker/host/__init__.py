"""The agent of a host, its tasks and their output. No TensorFlow is imported here.

Begin with `agent`, and with `launcher`: the life of a task, from top to bottom. `log_files` and `log_forwarder`: its output.

May import: worker.formats, worker.host.facts, worker.host.forkserver, worker.host.network, worker.host.processes, worker.machine,
    worker.protocol.
"""
