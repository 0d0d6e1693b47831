"""The output of `crossdraft watch`."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


class WatchView:
    """Output of `crossdraft watch`: a growing line for each answer; or a line of JSON for each window."""

    def __init__(self, console: "Console", questions: list[str], *, as_json: bool) -> None:
        self._console = console
        self._questions = questions
        self._as_json = as_json
        self._line: tuple[int, int] | None = None  # window and question whose line is being written
        self._noted: set[str] = set()

    def piece(self, window: int, end_s: float, index: int, text: str) -> None:
        """Show a new piece of the answer to a question about a window."""
        if self._as_json:
            return
        text = " ".join(text.splitlines())
        if self._line != (window, index):
            self.end_line()
            self._line, text = (window, index), text.lstrip()
            which = f"{index + 1}. " if len(self._questions) > 1 else ""
            self._print(f"{end_s:8.2f} s {which}", "dim")
        self._print(text)

    def answered(self, window: Mapping[str, Any]) -> None:
        """Show a window's result, as `AnsweredWindow.to_json`, once all its questions have been answered."""
        if self._as_json:
            print(json.dumps(window, ensure_ascii=False), flush=True)
            return
        answers = window["answers"]
        self._print(f"  ({answers[0]['first_ms']:.0f} to {answers[-1]['whole_ms']:.0f} ms)", "dim")
        self.end_line()
        for one in answers:
            for note in sorted({*one["notes"]} - self._noted):  # each note once
                self._print(f"{note}\n", "yellow")
                self._noted.add(note)
            if one["changed"]:
                at, question, before = window["end_s"], one["question"], one["before"]
                self._print(f"! {at:6.2f} s {question} changed, it was: {before}\n", "bold yellow")

    def signal(self, found: Mapping[str, Any], *, there: bool) -> None:
        """Say that the camera has no signal, or has it again; `found` is how the sources stand."""
        if self._as_json:
            print(json.dumps({"signal": there, **found}, ensure_ascii=False), flush=True)
            return
        self.end_line()
        self._print("the signal is back\n" if there else "no signal\n", "bold yellow")

    def end_line(self) -> None:
        """End the line that is being written, if there is one, as Ctrl-C does."""
        if self._line is not None:
            self._print("\n")
            self._line = None

    def summary(self, found: Mapping[str, Any], models: Mapping[str, object]) -> None:
        """Print the summary; `found` from `WatchSummary.to_json`, `models` for `--json` alone."""
        if self._as_json:
            print(json.dumps({"summary": {**models, **found}}, ensure_ascii=False), flush=True)
            return
        from crossdraft.streams.summary import sentences

        self._print("\n" + "\n".join(sentences(found)) + "\n")
        for name, one in found.get("live", {}).items():
            drift = one.get("drift_ppm")
            clock = "" if drift is None else f"; its clock drifts by {drift:.0f} ppm"
            counts = f"{one['received']:,} {'frames' if name == 'video' else name} received, {one['dropped']:,} dropped"
            self._print(f"{name}: {counts}, {one['reconnects']} reconnects{clock}.\n")
            for note in one["notes"]:
                self._print(f"  {note}\n", "yellow")

    def _print(self, text: str, style: str | None = None) -> None:
        self._console.print(text, style=style, markup=False, soft_wrap=True, end="")
        self._console.file.flush()
