"""PyAV, or one clear sentence where it is not installed: it comes with an extra."""

from crossdraft.errors import CrossdraftError

try:
    import av
except ImportError as error:
    raise CrossdraftError("Videos are read and written by PyAV; install it with `pip install av`.") from error

__all__ = ["av"]
