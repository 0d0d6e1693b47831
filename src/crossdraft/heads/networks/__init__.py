"""Head networks: pure `torch.nn`, one file each, over shared layers. They know nothing of the engine."""
