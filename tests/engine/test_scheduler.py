"""The loop's thread; what it does for requests is tested with the engine."""

import threading

from crossdraft.engine.decode import Decoder
from crossdraft.engine.request import Request
from crossdraft.engine.scheduler import Scheduler


def test_memory_is_given_back_when_the_answers_have_been_handed_over(target, monkeypatch):
    tidied, decoder = threading.Event(), Decoder(target)
    scheduler = Scheduler(lambda: decoder)
    monkeypatch.setattr(decoder, "tidy", lambda: decoder.busy or decoder.finished() or tidied.set())
    try:
        scheduler.submit(Request("x", max_new_tokens=4)).result(60)
        assert tidied.wait(10)
    finally:
        scheduler.close()
