"""Formats of files: checkpoints and snapshots, which of them are whole, and files of data. Standard library only.

A save is a directory with files of tensors and a manifest. The manifest is written last, by a rename, and has a checksum of each tensor
and one of itself: a directory without a manifest is no save, and a save with one other bit is not restored.

May import: nothing.
"""
