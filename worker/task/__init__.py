"""What runs inside a task: the bootstrap, and what `worker` offers to the user's script."""
