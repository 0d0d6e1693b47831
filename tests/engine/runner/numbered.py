"""A runner that tests drive without a decode loop: its requests are named by numbers."""

from crossdraft.engine.request import Request
from crossdraft.engine.request_state import Job, RequestState
from crossdraft.engine.rules import rule_for
from crossdraft.engine.runner.runner import DraftRunner


def row_of(number: int, request: Request) -> RequestState:
    """A request as the loop takes it up."""
    return RequestState(Job(number, request), rule_for(None, request.sampling))


class NumberedRunner(DraftRunner):
    """`start`, `collect`, `ask`, `commit` and `end` take a number, or a row as every runner does."""

    def _row(self, number):
        return self._slots[number].row if isinstance(number, int) else number

    def start(self, row, request, nodes, mode, *more):
        super().start(row_of(row, request) if isinstance(row, int) else row, request, nodes, mode, *more)

    def collect(self, row):
        return super().collect(self._row(row))

    def ask(self, rows, budgets):
        return super().ask([self._row(row) for row in rows], budgets)

    def commit(self, rows, outputs):
        super().commit([self._row(row) for row in rows], outputs)

    def end(self, row):
        return super().end(self._row(row))

    def spans(self, number):
        """The drafter's spans in a request's timeline."""
        return [span for span in self._slots[number].row.ledger.timeline.spans if span.lane == "drafter"]
