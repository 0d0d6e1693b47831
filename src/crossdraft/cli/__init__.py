"""The command line: one file for each command group, which only calls the library."""
