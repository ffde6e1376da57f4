"""Snapshots of a training in the memory of its host: when one is made, and what is in it. docs/resume.md says what they are for."""
