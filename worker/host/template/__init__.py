"""The process that imports once and forks tasks (`server`, started by `start.py`), the agent's end of it (`client`), and who gets which
(`choice`)."""
