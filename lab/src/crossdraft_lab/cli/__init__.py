"""The command line: one file a command group, a thin skin over the library, no logic."""
