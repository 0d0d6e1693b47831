"""The server's log: a line for each request, as text or as JSON."""

import json
import logging
import sys
from datetime import UTC, datetime

NOTICES = ("crossdraft.serve", "crossdraft.engine.runner.runner")  # loggers whose notices are shown, too
NO_NEWS = frozenset(
    {"ASGI callable returned without completing handshake.", "Invalid UTF-8 sequence received from client."}
)


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Format time, level, message, and the facts of a record."""
        found: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info is not None:
            found["error"] = self.formatException(record.exc_info)
        return json.dumps(found)


class TextLines(logging.Formatter):
    """Formats time, level, message, and facts as `name=value`. Facts cannot forge a line or another fact."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one line, followed by the traceback of an error."""
        time = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%d %H:%M:%S")
        facts = "".join(f" {name}={_quoted(value)}" for name, value in getattr(record, "facts", {}).items())
        line = f"{time} {record.levelname.lower()} {record.getMessage()}{facts}"
        line = line.encode("unicode_escape").decode()
        return line if record.exc_info is None else f"{line}\n{self.formatException(record.exc_info)}"


def _quoted(value: object) -> str:
    r"""Format a fact; if it could look like several, it is quoted, and its own quotes become single ones.

    >>> _quoted("stop: give 1"), _quoted('a "b" client=eve'), _quoted(3.5)
    ('"stop: give 1"', '"a \'b\' client=eve"', '3.5')
    """
    text = str(value)
    return text if text and not set(text) & set(' ="') else f'"{text.replace(chr(34), chr(39))}"'


def is_news(record: logging.LogRecord) -> bool:
    """True if a record of uvicorn's is worth logging.

    uvicorn logs two events as failures that are none: a WebSocket that was refused with a response, and, with a
    traceback, text that is not UTF-8, for which it correctly ends the connection.
    """
    return record.getMessage() not in NO_NEWS


def start_logging(style: str) -> None:
    """Log to stderr, our own records and warnings of others."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if style == "json" else TextLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("uvicorn.error").addFilter(is_news)
    for name in NOTICES:
        logging.getLogger(name).setLevel(logging.INFO)
