"""What docs say of single benches, written from what these wrote with `--json-out`; see `docs/figures.py`."""

from collections.abc import Iterator, Mapping
from typing import Any

from tools.figures import Tie

JSON = Mapping[str, Any]
RESULTS = "docs/results/bench"
REPLICAS = {"server": "server alone", "replicas-1": "1 replica", "replicas-2": "2 replicas"}


def replicas(*found: JSON) -> Iterator[str]:
    """Both halves of the table, with a drafter and without, and the sentence under it."""
    answers = wrong = 0
    grown = []
    for run, before in zip(found, ("", "without a drafter: "), strict=True):
        rows = run["contestants"]
        for number, (name, label) in enumerate(REPLICAS.items()):
            row = rows[name]
            alone, said = name == "server", label if number else before + label
            added = "" if alone else f"{row['added_ms_p50']:.0f} ms"
            share = "1" if alone else f"{row['of_the_server']:.2f}"
            yield f"| {said} | {row['e2e_ms']['p50']:.0f} ms | {added} | {row['tokens_per_s']:.0f} | {share} |"
            answers += row["statuses"]["200"]
            wrong += row["wrong_answers"]
        grown.append(rows["replicas-2"]["tokens_per_s"] / rows["replicas-1"]["tokens_per_s"])
    yield f"{wrong} wrong answers of {answers}, all 200."
    yield f"that is {grown[0]:.2f} times the throughput, and {grown[1]:.2f} without a drafter."


def frames(pair: JSON, large: JSON) -> Iterator[str]:
    """What reusing features of frames gains."""
    whole, reused = (pair["encode_ms"][way]["median"] for way in ("whole", "reused"))
    yield f"in {reused:.1f} ms instead of {whole:.1f}"
    yield f"all of it {_ratio(pair['encode_speedup'])}; {pair['frames_encoded']} frames encoded, "
    yield f"{pair['frames_reused']:,} reused), and answers {_ratio(pair['speedup'])}"
    yield "{} of {} answers were identical".format(*pair["identical"].split("/"))
    two, four = large["shifts"]
    yield (
        f"{two['reused_ms']['median'] / 1e3:.2f} s where {two['new']} of {two['frames']} frames are new, "
        f"the whole clip {two['whole_ms']['median'] / 1e3:.1f} s ({two['speedup']:.1f} times as fast); "
        f"{four['reused_ms']['median'] / 1e3:.1f} s where {four['new']} are new, whole "
        f"{four['whole_ms']['median'] / 1e3:.1f} s ({four['speedup']:.1f} times)"
    )


def _ratio(found: JSON) -> str:
    low, high = found["ci95"]
    return f"{found['value']:.2f} times as fast [{low:.2f}, {high:.2f}]"


TIES = (
    Tie("docs/ray.md", tuple(f"{RESULTS}/{name}.json" for name in ("replicas", "replicas_no_drafter")), replicas),
    Tie("docs/streams.md", tuple(f"{RESULTS}/{name}.json" for name in ("frames", "frames_7b")), frames),
)
