"""An OpenAI-compatible HTTP server: a thin layer over `crossdraft.Engine`, with no decoding of its own."""
