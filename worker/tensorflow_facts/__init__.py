"""What orch knows of the releases of TensorFlow and Keras, without an import of them."""

NEWEST_PYTHON = (3, 13)
"""The newest Python for which there is a TensorFlow."""
