"""The process that imports once and forks tasks (`server`, started by `start.py`), and the agent's end of it (`client`)."""
