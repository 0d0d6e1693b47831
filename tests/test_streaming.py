"""One answer piece by piece; what engines do with it is tested with them."""

from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Finish, Request
from crossdraft.engine.scheduler import Scheduler
from crossdraft.streaming import Stream
from tests.engine.zoo import ZOO, as_target


def test_who_cancels_while_the_request_is_handed_over_has_cancelled_it():
    target = as_target(*ZOO["video_llava"]())
    scheduler, request = Scheduler(lambda: DecodeLoop(target)), Request("x", max_new_tokens=400)

    def submit(on_piece):
        pending = scheduler.submit(request, on_piece)
        stream.cancel()  # as another thread may at this moment
        return pending

    stream = Stream(submit)
    try:
        tokens = [token for piece in stream for token in piece.tokens]
        assert len(tokens) < 400
        assert stream.answer is None or stream.answer.finish is Finish.CANCELLED
    finally:
        scheduler.close()
