"""Formulas of speculative decoding and of hidden drafts, from given times and acceptance rates."""


def steady_speedup(alpha: float, gamma: int, c: float, verify: float) -> float:
    """S = [(1 − α^{γ+1}) / (1 − α)] / [γc + V(γ+1)/t]; `verify` is V(γ+1)/t (Leviathan et al. 2023, Theorem 3.8)."""
    emitted = gamma + 1 if alpha == 1 else (1 - alpha ** (gamma + 1)) / (1 - alpha)
    return emitted / (gamma * c + verify)


def hidden_time(prefill: float, drafting: float, verify: float, accepted: float, new_tokens: int, step: float) -> float:
    """T = max(P_T, P_D + drafting) + V(k+1) + (N − 2 − a)⁺·t: an answer with one hidden draft, plain afterwards.

    All times in one unit; `drafting` includes the drafter's own prefill.
    """
    return max(prefill, drafting) + verify + max(0.0, new_tokens - 2 - accepted) * step


def hiding_bound(prefill: float, total: float) -> float:
    """1/ρ, the largest speed-up of any work hidden in the prefill; ρ = the prefill's share of the baseline's time."""
    return total / prefill
