"""Networks of the adapters: from a drafter's features to the target's."""
