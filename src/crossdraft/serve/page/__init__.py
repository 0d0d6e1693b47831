"""The web page of the server: static files, and what it asks for beside the API."""
