"""Training of heads on a target's answers: recipes, tasks, losses, and the measurement under the engine."""
