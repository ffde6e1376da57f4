"""A process that has imported, kept between runs (`orch warm`).

`server` is the process, started by `start_warm.py`; a fork of it becomes an agent (`move`). `client` is an agent's way there,
`command.py` what
`orch warm` runs on the host. They meet at a `place`. `key` and `files`: what must be equal for it to be used.
"""
