"""The web page of the server: its static files, and its routes beside the API."""
