"""Edge and cloud through a slow network."""
