"""A real Kubernetes for the tests: Debian's 1.20 with two nodes, in namespaces of its own (`bed`); a standing one is its ``__main__``."""
