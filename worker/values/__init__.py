"""Values and texts that every room may use: quick dataclasses, JSON, words, excerpts, secrets left out. Pure.

May import: nothing.
"""
