"""The process that imports once and forks tasks (`template_server`, started by `start_template.py`), the agent's end of it
(`template_client`), and who gets which
(`choice`)."""
