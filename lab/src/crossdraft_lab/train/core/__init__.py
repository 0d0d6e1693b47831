"""What every training shares: the trainer, its log, checkpoints, several processes, recipes, provenance."""
