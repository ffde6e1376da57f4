"""The template of a host: a process that imports TensorFlow once and forks tasks.

start_template.py starts the process, template_server.py is its loop, and safety.py decides whether the process may be forked.
template_link.py is the agent's end. import_environment.py: which tasks can be forked from one template.

May import: worker.host.agent, worker.host.facts, worker.host.network, worker.host.processes, worker.machine, worker.protocol, worker.task,
    worker.task.keras, worker.task.observe.
"""

MESSAGE_BYTES = 64 * 1024
"""The longest message between the agent and the template."""
