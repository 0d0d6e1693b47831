"""Settings of the drafter inside vLLM: `--additional-config '{"crossdraft": {"drafter": "event", …}}'`."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from crossdraft.checks import core_numbers, did_you_mean, positive, text, whole
from crossdraft.dtypes import dtype_name
from crossdraft.engine.fast.cores import available_cores
from crossdraft.engine.runner.process import DRAFTER_TIMEOUT_S
from crossdraft.errors import CrossdraftError
from crossdraft.methods import check_spec, needs_target, read_spec

KEY = "crossdraft"  # of vLLM's additional config
LONGEST = 128  # tokens of a draft: vLLM's rejection sampler takes no more


@dataclass(frozen=True, kw_only=True)
class HostSettings:
    """Settings of the drafter, which runs in a process of its own, and of the requests to it.

    Args:
        drafter: a spec such as `event` or `union:event,memory`; no drafter that looks into the target.
        media_root: folder of the recordings and clips that requests may name for the drafter; `None` = requests may
            name no files.
        hidden_tokens: longest draft made while vLLM reads the prompt; `None` = `num_speculative_tokens`.
        wait_ms: most milliseconds that a step of the scheduler waits for drafts; 0 = it takes what has come.
        requests: most requests that are drafted for at a time; others wait for a place, or get no drafts.
        cores: CPU cores of the drafter; `None` = all.
        device, dtype: device and dtype of the drafter; `None` = the usual ones.
        drafter_timeout_s: seconds without progress after which the drafter counts as lost, and is restarted.

    Raises:
        CrossdraftError: a value is unknown, or out of range.
    """

    drafter: str
    media_root: str | None = None
    hidden_tokens: int | None = None
    wait_ms: float = 0.0
    requests: int = 32
    cores: tuple[int, ...] | None = None
    device: str | None = None
    dtype: str | None = None
    drafter_timeout_s: float = DRAFTER_TIMEOUT_S

    def __post_init__(self) -> None:
        spec = read_spec(text("drafter", self.drafter, "event"))
        check_spec(spec)
        if needs_target(spec):
            raise CrossdraftError(
                f"The drafter '{spec}' reads the target's features, which vLLM does not hand out; export an EAGLE head "
                "and let vLLM run it (docs/convert_heads.md), or name a drafter such as event or union:event,memory."
            )
        if self.media_root is not None and not Path(text("media_root", self.media_root, "/data/clips")).is_dir():
            raise CrossdraftError(f"media_root is '{self.media_root}', which is no folder; name one, or leave it out.")
        if self.hidden_tokens is not None and whole("hidden_tokens", self.hidden_tokens) > LONGEST:
            raise CrossdraftError(f"hidden_tokens is {self.hidden_tokens}; vLLM verifies {LONGEST} at most.")
        if self.wait_ms != 0:
            positive("wait_ms", self.wait_ms)
        whole("requests", self.requests)
        object.__setattr__(self, "cores", core_numbers("cores", self.cores, available_cores()))
        if self.dtype is not None:
            object.__setattr__(self, "dtype", dtype_name(self.dtype))
        positive("drafter_timeout_s", self.drafter_timeout_s)

    @classmethod
    def of(cls, additional_config: Any) -> "HostSettings":
        """Read the settings in vLLM's additional config.

        Raises:
            CrossdraftError: the config has no such settings, a key is unknown, or a value is wrong.
        """
        found = additional_config.get(KEY) if isinstance(additional_config, Mapping) else None
        if not isinstance(found, Mapping) or "drafter" not in found:
            raise CrossdraftError(
                f"vLLM's additional config names no drafter; add --additional-config '{{\"{KEY}\": "
                '{"drafter": "event", "media_root": "FOLDER"}}\'.'
            )
        known = [field.name for field in fields(cls)]
        unknown = next((key for key in found if key not in known), None)
        if unknown is not None:
            hint = did_you_mean(str(unknown), known)
            raise CrossdraftError(f"'{KEY}' has no setting '{unknown}'{hint}; it has {', '.join(known)}.")
        return cls(**found)
