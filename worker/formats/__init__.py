"""Saves of a training on the disk: what is in a save, which saves are whole, and which one is restored. Standard library only.

A save is a directory with files of tensors and a manifest. The manifest is written last, by a rename, and has a checksum of each tensor
and one of itself: a directory without a manifest is no save, and a save with one other bit is not restored.
"""
