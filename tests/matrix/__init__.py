"""orch with other versions of Python, TensorFlow and Keras than those of .venv: `make matrix`, its corners, and `make next`.

`python -m tests.matrix` makes an environment for each cell (environments.py), runs the checks there (checks.py), and writes the table of
docs/limits.md (table.py). What cannot be checked on a machine is said, and stands in the table as not run.

The interpreters are those of pyenv and of PATH: pyenv has had all from 3.10 to 3.13 wherever this was run, so nothing here makes a tree of
another Debian (debootstrap) for one that is missing. tests/python_3_14.py does, for the controller on a Python without a TensorFlow.
"""
