"""Declares the settings that a task gets, and has tables of what TensorFlow's and Keras's releases allow. Pure.

May import: nothing.
"""
