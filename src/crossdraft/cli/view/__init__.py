"""What `ask` and `demo` show: pure functions from an answer and its timeline to text, and the thin shells around."""
