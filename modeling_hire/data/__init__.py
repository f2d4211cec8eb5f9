"""Reading tasks: which text and labels a task has, where they come from, and how they become model inputs."""
