"""Parts that all trainings share: the trainer, its log, checkpoints, several processes, recipes, provenance."""
