"""`crossdraft bench serve`: the server's cost over the engine called directly, and its behaviour with many clients."""
