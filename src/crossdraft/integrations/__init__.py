"""Other programs as hosts of our drafters. Each imports its host; nobody but `bench` imports it."""
