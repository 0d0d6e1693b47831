"""`crossdraft bench serve`: what the server costs over the engine called directly, and how it bears many clients."""
