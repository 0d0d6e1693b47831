"""Head networks: pure `torch.nn`, one file each, over shared layers. They do not import the engine."""
