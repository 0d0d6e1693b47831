"""How many figures of each page are tied to no JSON: a list that may only shrink; `docs/figures.py` ties the others."""

CARDS = "src/crossdraft/reference"

# Figures of an earlier run, no JSON kept: how many of each page. The counts may only fall; whoever measures again keeps
# the JSON in docs/results and ties the figures below. Limits and settings that stand between them are counted, too.
EARLIER_RUNS = {
    "docs/compression.md": 11,
    "docs/data.md": 7,
    "docs/drafters.md": 21,
    "docs/edge.md": 3,
    "docs/formats.md": 6,
    "docs/growth.md": 2,
    "docs/how_it_works.md": 5,
    "docs/large_models.md": 10,
    "docs/many_requests.md": 8,
    "docs/ray.md": 7,
    "docs/real_pair.md": 9,
    "docs/results/experiments.md": 13,  # seconds that the runs took, and two temperatures
    "docs/rules.md": 3,
    "docs/serve.md": 2,
    "docs/vllm.md": 13,
    "docs/your_own_models.md": 7,
}
# Pages without measured figures: limits, sizes of models, settings, versions.
SETTINGS = {
    "docs/adding_a_vlm.md": 2,
    "docs/deploy.md": 1,
    "docs/experiments.md": 10,
    "docs/planning.md": 1,
    "docs/serving_in_process.md": 2,
    f"{CARDS}/heads/event_medusa/README.md": 2,
    f"{CARDS}/heads/fast/README.md": 2,
    f"{CARDS}/heads/glance/README.md": 5,
    f"{CARDS}/judge/README.md": 1,
}
UNTIED = EARLIER_RUNS | SETTINGS
