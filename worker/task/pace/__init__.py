"""How fast a task makes its steps, and what it waits for: `meetings` counts in TensorFlow, `step_times` folds the counts into windows."""
