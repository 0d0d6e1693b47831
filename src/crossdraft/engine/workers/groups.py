"""Lists of devices and core groups, as a user writes them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from crossdraft.engine.fast.cores import available_cores
from crossdraft.errors import CrossdraftError

EXAMPLE = "cpu:0,cpu:1 or cuda:0,cuda:1"


@dataclass(frozen=True)
class DeviceGroup:
    """The device, or the CPU cores, for one share of some work.

    Args:
        device: `cpu`, or a CUDA device.
        cores: of a CPU, those of the group.
    """

    device: str
    cores: tuple[int, ...] = ()

    def __str__(self) -> str:
        """As `read_groups` reads it.

        >>> str(DeviceGroup("cpu", (0, 2))), str(DeviceGroup("cuda:1"))
        ('cpu:0,2', 'cuda:1')
        """
        return f"cpu:{','.join(map(str, self.cores))}" if self.cores else self.device


def read_groups(name: str, value: str | Sequence[str]) -> tuple[DeviceGroup, ...]:
    """Groups of CPU cores, or CUDA devices, out of a list such as `cpu:0,cpu:1`, `cpu:0-1,cpu:2,4` or `cuda:0,cuda:1`.

    A number without a device belongs to the group in front of it.

    Args:
        name: of the option.
        value: one string, or one for each group.

    Raises:
        CrossdraftError: it is no such list, mixes CPU and CUDA, or names a core twice or one that cannot be used here.
    """
    if not isinstance(value, Iterable):
        raise _no_list(name, value)
    words = value.split(",") if isinstance(value, str) else [word for item in value for word in str(item).split(",")]
    groups: list[tuple[str, list[str]]] = []
    for word in (word.strip() for word in words):
        kind, colon, number = word.rpartition(":")
        if colon:
            groups.append((kind, [number]))
        elif groups and groups[-1][0] == "cpu":
            groups[-1][1].append(word)
        else:
            raise _no_list(name, value)
    kinds = {kind for kind, _ in groups}
    if kinds == {"cuda"} and all(number.isdecimal() for _, (number,) in groups):
        return tuple(DeviceGroup(f"cuda:{int(number)}") for _, (number,) in groups)
    if kinds != {"cpu"}:
        raise _no_list(name, value)
    found = [tuple(core for part in parts for core in _cores(part, name, value)) for _, parts in groups]
    _check_cores(name, [core for cores in found for core in cores])
    return tuple(DeviceGroup("cpu", cores) for cores in found)


def _cores(part: str, name: str, value: object) -> range:
    """The cores of `3` or `0-3`."""
    first, dash, last = part.partition("-")
    if not (first.isdecimal() and (last.isdecimal() or not dash)) or len(part) > 9:
        raise _no_list(name, value)
    cores = range(int(first), int(last or first) + 1)
    if not cores or cores[-1] > max(available_cores()):
        raise _absent(name, cores[-1]) if cores else _no_list(name, value)
    return cores


def _check_cores(name: str, cores: Sequence[int]) -> None:
    allowed = available_cores()
    for core in cores:
        if core not in allowed:
            raise _absent(name, core)
    if len(set(cores)) < len(cores):
        raise CrossdraftError(f"{name} names a core twice; each core belongs to one group.")


def _absent(name: str, core: int) -> CrossdraftError:
    usable = ", ".join(map(str, available_cores()[:16]))
    return CrossdraftError(f"{name} names core {core}, but this process may use only {usable}.")


def _no_list(name: str, value: object) -> CrossdraftError:
    return CrossdraftError(f"{name} is {str(value)[:60]!r}; write it as {EXAMPLE}.")
