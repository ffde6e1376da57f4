"""Saves of a training, and the exact continuation from one. docs/resume.md says what is exact, and what is not."""
