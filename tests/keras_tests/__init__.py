"""Keras's own tests as a judge of orch: ``python -m tests.keras_tests`` runs them as a task of orch, and in step on two workers.

The wheel of a release of Keras has them; that of a pre-release has not, and is judged with those of the newest release. `inside.py` runs
them in a process; `known.json` has those that are known to fail, with the reason.
"""

GROUPS = {
    "trainers": ("trainers",),
    "metrics": ("metrics", "losses"),
    "optimizers": ("optimizers",),
    "callbacks": ("callbacks",),
    "models": ("models", "distillation"),
    "saving": ("saving", "legacy/saving"),
    "core": ("layers/core", "layers/normalization", "layers/regularization", "layers/layer_test.py"),
    "strategies": ("backend/tensorflow",),
}
"""Of folders and files of keras/src. What they leave out, such as ops and other layers, knows nothing of strategies."""
