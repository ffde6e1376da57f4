"""Writes bytes to stdout: ``write_bytes.py BYTES KIND``; KIND: ``text``, ``third`` (a third of them is not UTF-8) or ``random``."""

import os
import random
import sys

BLOCK = 1_000_000
drawn = random.Random(os.environ.get("RANK"))
kinds = {
    "text": lambda: (b"x" * 99 + b"\n") * (BLOCK // 100),
    "third": lambda: (b"\xffaa" * 33 + b"\n") * (BLOCK // 100),
    "random": lambda: drawn.randbytes(BLOCK),
}
block = kinds[sys.argv[2]]()
for _ in range(int(sys.argv[1]) // BLOCK):
    sys.stdout.buffer.write(block)
