"""Statistics of one answer's generation. An observer: it never changes a result."""

from dataclasses import dataclass, field


@dataclass
class Stats:
    """Counts and times of one answer.

    A round is one verify pass; the pass that a hidden draft rides along with is one too. Times are in seconds, measured
    from when the request was taken up. `rule` names the acceptance rule with its settings, `lossy_prefill` the way
    in which the target read less than its whole clip. Unless `lossless`, the answer may differ from the target's own.
    `prefill_loss` is set if a speculative prefill was checked: 1 - ROUGE-L, 0..1, of the answers with and without it;
    `check_s` is the time of that check, which is not in `total_s`.
    """

    rule: str | None = None
    lossless: bool = True
    lossy_rule: bool = False
    lossy_prefill: str | None = None
    prefill_loss: float | None = None
    check_s: float = 0.0
    seed: int | None = None  # of a sampled answer's draws
    prompt_tokens: int = 0
    cached_tokens: int = 0  # tokens of the prompt that came from the prefix cache
    new_tokens: int = 0
    rounds: int = 0
    rounds_off: int = 0  # rounds without a draft, as drafting did not pay
    undrafted: str | None = None  # why hardly anything was drafted: the last of the answer's notes
    drafted: int = 0
    accepted: int = 0
    hidden_drafted: int = 0
    hidden_accepted: int = 0
    predicted: int = 0  # tokens of the request's predictions,
    predicted_accepted: int = 0  # and tokens of the answer that followed one of them
    bad_drafts: int = 0  # drafts that the target could not read: dropped
    policy_errors: int = 0  # errors in planning or measuring, which cost a draft at most
    accepted_at: list[int] = field(default_factory=list)  # [d]: drafts accepted at depth d+1
    drafted_at: list[int] = field(default_factory=list)  # [d]: rounds that offered depth d+1
    first_provisional_s: float | None = None
    queued_s: float = 0.0  # before it was taken up
    ttft_s: float = 0.0
    total_s: float = 0.0
    stages_s: dict[str, float] = field(default_factory=dict)
    hidden_drafting_s: float = 0.0  # the drafter's reading and hidden draft, even if that came too late
    hidden_inside_s: float = 0.0  # the part of it while the target prepared, encoded and prefilled

    @property
    def lossy(self) -> list[tuple[str, str | None]]:
        """Causes that may have changed the answer, `rule` or `prefill`, each with its name."""
        if self.lossless:
            return []
        prefill = [] if self.lossy_prefill is None else [("prefill", self.lossy_prefill)]
        return [("rule", self.rule), *prefill] if self.lossy_rule or not prefill else [*prefill]

    @property
    def tau(self) -> float:
        """Mean acceptance length: tokens emitted per verify pass, bonus included.

        A token that the pass also verified but that lies after the answer's end is not emitted and does not count.
        """
        return self.new_tokens / self.rounds if self.rounds else 0.0

    @property
    def hidden_share(self) -> float | None:
        """Part of the hidden drafting that ran while the target read its prompt, 0..1; None if there was none.

        The target reads while it prepares the video, encodes it and prefills.
        """
        return self.hidden_inside_s / self.hidden_drafting_s if self.hidden_drafting_s else None

    @property
    def tokens_per_s(self) -> float:
        """New tokens over the total time, prefill included."""
        return self.new_tokens / self.total_s if self.total_s else 0.0

    @property
    def overhead_share(self) -> float:
        """The engine's own part of the rounds after the prefill: 1 − (target forward + drafter's computing) / round.

        Sending, packing and waiting for a drafter that computes nothing meanwhile are the engine's own.
        """
        rounds = self.stages_s.get("rounds", 0.0)
        known = self.stages_s.get("verify", 0.0) + self.stages_s.get("draft", 0.0)
        return max(0.0, 1 - known / rounds) if rounds else 0.0

    @property
    def accepted_per_position(self) -> list[float]:
        """[d]: share of the drafts of depth d+1 that were accepted."""
        return [got / tried for got, tried in zip(self.accepted_at, self.drafted_at, strict=True)]

    def add_time(self, stage: str, seconds: float) -> None:
        """Add to a stage's time."""
        self.stages_s[stage] = self.stages_s.get(stage, 0.0) + seconds

    def count_round(self, depth: int, nodes: int, accepted: int, emitted: int, *, hidden: bool) -> None:
        """Count a verify pass over a tree of `nodes` nodes and `depth` levels, of which `accepted` nodes were accepted.

        It added `emitted` tokens to the answer: accepted + 1, or fewer if the answer ended inside the path. Levels
        after that end count neither as offered nor as accepted.
        """
        if emitted <= accepted:
            accepted = depth = emitted
        self.rounds += 1
        self.new_tokens += emitted
        self.drafted += nodes
        self.accepted += accepted
        if hidden:
            self.hidden_drafted += nodes
            self.hidden_accepted += accepted
        missing = depth - len(self.drafted_at)
        self.drafted_at += [0] * missing
        self.accepted_at += [0] * missing
        for level in range(depth):
            self.drafted_at[level] += 1
            self.accepted_at[level] += level < accepted

    def to_json(self) -> dict[str, object]:
        """Plain numbers for `--json`; times in milliseconds."""
        share = self.hidden_share
        return {
            "rule": self.rule,
            "lossless": self.lossless,
            "lossy_prefill": self.lossy_prefill,
            "prefill_loss": None if self.prefill_loss is None else round(self.prefill_loss, 4),
            "seed": self.seed,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "new_tokens": self.new_tokens,
            "rounds": self.rounds,
            "rounds_off": self.rounds_off,
            "undrafted": self.undrafted,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "predicted": self.predicted,
            "predicted_accepted": self.predicted_accepted,
            "bad_drafts": self.bad_drafts,
            "policy_errors": self.policy_errors,
            "tau": round(self.tau, 3),
            "accepted_per_position": [round(share, 3) for share in self.accepted_per_position],
            "hidden_drafted": self.hidden_drafted,
            "hidden_accepted": self.hidden_accepted,
            "hidden_share": None if share is None else round(share, 3),
            "first_provisional_ms": _ms(self.first_provisional_s),
            "queued_ms": _ms(self.queued_s),
            "ttft_ms": _ms(self.ttft_s),
            "total_ms": _ms(self.total_s),
            "check_ms": _ms(self.check_s),
            "tokens_per_s": round(self.tokens_per_s, 1),
            "overhead_share": round(self.overhead_share, 3),
            "stage_ms": {stage: _ms(seconds) for stage, seconds in self.stages_s.items()},
        }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 2)
