"""The template of a host: a process that imports TensorFlow once and forks tasks.

start_template.py starts the process, template_server.py is its loop, and safety.py decides whether it may be forked. fork_server.py is the
agent's end.
"""

MESSAGE_BYTES = 64 * 1024
"""The longest message between the agent and the template."""
