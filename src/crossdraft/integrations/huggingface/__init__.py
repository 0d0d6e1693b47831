"""`model.generate(…, custom_generate=FOLDER)`: Hugging Face's own call, answered by an engine of ours."""

from pathlib import Path

FOLDER = str(Path(__file__).parent)
"""What `custom_generate` is to be: the folder that holds `custom_generate/generate.py`."""
