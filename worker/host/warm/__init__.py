"""A process that has imported TensorFlow, kept between the runs of one user on one machine (`orch warm`).

`warm_server` is that process, started by `start_warm.py`. A fork of it becomes the agent of a run, and a fork of that one the run's
template. The controller requests the fork over the socket of `warm_socket`, and sends one end of its channel along
(orchestrator/backends/warm_agent.py).
"""
