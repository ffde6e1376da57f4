"""Writes when it began, as ``DIRECTORY/<rank>.json``. Usage: ``begun.py DIRECTORY``."""

import os
import sys
import time

import moments

moments.write(sys.argv[1], f"{os.environ['RANK']}.json", {"begun": time.time()})
