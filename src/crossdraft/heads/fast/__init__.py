"""The drafter `fast`: an answer's beginning from event features, without a language model."""

from crossdraft.heads.event_medusa import EventHeadSettings, build, check
from crossdraft.records import Method

RECORDS = (
    Method(
        "fast", "the answer's beginning from the event encoder alone, without a language model", "crossdraft",
        build, check=check,
        settings=EventHeadSettings, trained=True, drafts_trees=True, senses=("events",), weights={"dir": "fast"},
        model="event", model_parts=("vision_tower", "event_adaptor", "multi_modal_projector"),
        network="fast", task="events",
    ),
)  # fmt: skip
