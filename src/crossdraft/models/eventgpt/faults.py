"""What libraries raise over foreign files, in one sentence of ours."""

from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from crossdraft.errors import CrossdraftError

# What the libraries' parsers and writers raise; the tokenizers library also a bare `Exception`.
_LIBRARY_ERRORS = (
    OSError, ValueError, TypeError, LookupError, AttributeError, RuntimeError, SafetensorError, StrictDataclassError,
)  # fmt: skip


@contextmanager
def told_as(fault: str, remedy: str) -> Iterator[None]:
    """Tell what a library raises on a damaged file or a full disk as "fault (reason); remedy.".

    Our own errors are sentences already and pass unchanged. So does whatever no file can cause: that is a bug.
    """
    try:
        yield
    except CrossdraftError:
        raise
    except Exception as error:
        if not isinstance(error, _LIBRARY_ERRORS) and type(error) is not Exception:
            raise
        reason = " ".join(str(error).split())[:200]
        raise CrossdraftError(f"{fault} ({reason}); {remedy}.") from error
