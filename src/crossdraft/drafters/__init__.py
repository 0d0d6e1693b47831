"""Ways of drafting, one file a method. Imports the engine and the networks, nothing else of ours."""
