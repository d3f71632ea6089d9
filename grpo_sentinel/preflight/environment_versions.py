"""Versions that break together (S41): what each trainer package asks of the others, and known pairs. Imports none."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module, metadata, util
from pathlib import Path

from grpo_sentinel.preflight.look import Level
from grpo_sentinel.preflight.report import Fault

TRAINERS = (
    "torch",
    "transformers",
    "trl",
    "accelerate",
    "datasets",
    "peft",
    "deepspeed",
    "vllm",
    "safetensors",
    "tokenizers",
    "verl",
    "openrlhf",
    "flash-attn",
    "bitsandbytes",
    "numpy",
    "nvidia-nccl-cu11",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
)
_OWN_EXTRAS = ("trl", "verl", "openrlhf")  # an extra named as a package tells with what versions of it they were tried
# oldest driver of each CUDA major version (CUDA compatibility guide, minor-version compatibility)
_DRIVERS = {11: (450, 80), 12: (525, 60), 13: (580, 65)}
_CUDA_LINE = re.compile(r"^cuda(?:\s*:[^=]*)?\s*=\s*['\"]([\d.]+)['\"]", re.MULTILINE)
_DRIVER = re.compile(r"Kernel Module.*?\s(\d+)\.(\d+)")

Known = tuple[str, str, str, str]  # package, its versions, other package, its versions
KNOWN: Mapping[Known, str] = {
    ("numpy", ">=2", "torch", "<2.3"): "torch before 2.3 was built for numpy 1: tensor.numpy() fails",
}
"""Pairs that no package's own requirements tell."""


def installed(version: Callable[[str], str] = metadata.version) -> dict[str, str]:
    """Versions of the trainer packages that are installed, from their metadata alone."""
    out = {}
    for name in TRAINERS:
        try:
            out[name] = version(name)
        except metadata.PackageNotFoundError:
            continue
    return out


def _tried_with(name: str, version: str, wanted: str, have: str) -> Fault:
    return _fault(
        "not-tried-together", f"{name} {version} was made for {wanted}, not {have}",
        f"pip install '{wanted}', or another {name}", Level.DOUBTFUL,
    )  # fmt: skip


def version_faults(
    versions: Mapping[str, str], requires: Callable[[str], list[str] | None] = metadata.requires
) -> tuple[list[Fault], list[str]]:
    """Judge them; also gives what could not be judged."""
    try:
        packaging = import_module("packaging.requirements")
        specifiers = import_module("packaging.specifiers")
    except ImportError:
        return [], ["whether versions fit together: packaging is not installed"]
    faults = []
    for name in versions:
        for text in requires(name) or ():
            try:
                wanted = packaging.Requirement(text)
            except ValueError:
                continue
            other = wanted.name.lower().replace("_", "-")
            have = versions.get(other)
            if have is None or wanted.specifier.contains(have.partition("+")[0], prereleases=True):
                continue
            if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
                faults.append(
                    _fault(
                        "requirement",
                        f"{name} {versions[name]} needs {other} {wanted.specifier}, not {have}",
                        f"pip install '{other}{wanted.specifier}', or another {name}",
                    )
                )
            elif name in _OWN_EXTRAS and other != name and wanted.marker.evaluate({"extra": other}):
                faults.append(_tried_with(name, versions[name], f"{other}{wanted.specifier}", have))
    for (one, ones, other, others), why in KNOWN.items():
        if one in versions and other in versions:
            both = ((versions[one], ones), (versions[other], others))
            if all(
                specifiers.SpecifierSet(spec).contains(have.partition("+")[0], prereleases=True) for have, spec in both
            ):
                faults.append(
                    _fault(
                        "known-conflict",
                        f"{one} {versions[one]} with {other} {versions[other]}: {why}",
                        f"bring {one} or {other} to a version of the other's age",
                    )
                )
    nccl = [name for name in versions if name.startswith("nvidia-nccl-")]
    if len(nccl) > 1:
        faults.append(
            _fault(
                "two-nccl",
                f"{' and '.join(nccl)} are both installed: ranks may load different libraries",
                "uninstall the one that does not belong to torch's CUDA",
            )
        )
    return faults, []


def _fault(code: str, message: str, remedy: str, level: Level = Level.BROKEN) -> Fault:
    return Fault(level=level, code=code, where="", message=message, remedy=remedy)


def torch_cuda() -> str | None:
    """CUDA that torch was built for, read from the text of torch/version.py; "" for a CPU build, None without torch."""
    spec = util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    found = _CUDA_LINE.search(text)
    return found[1] if found else ""


def driver_version(path: Path = Path("/proc/driver/nvidia/version")) -> tuple[int, int] | None:
    """Major and minor version of the loaded NVIDIA driver; None when there is none."""
    try:
        found = _DRIVER.search(path.read_text(encoding="utf-8"))
    except OSError:
        return None
    return (int(found[1]), int(found[2])) if found else None


def driver_faults(cuda: str | None, driver: tuple[int, int] | None) -> list[Fault]:
    """Judge torch's CUDA against the driver."""
    if not cuda or driver is None:
        return (
            []
            if cuda != "" or driver is None
            else [
                _fault(
                    "cpu-build", "a GPU driver is loaded, and torch is a CPU build", "install the CUDA build of torch"
                )
            ]
        )
    needed = _DRIVERS.get(int(cuda.partition(".")[0]))
    if needed is None or driver >= needed:
        return []
    return [
        _fault(
            "driver-too-old",
            f"torch is built for CUDA {cuda}, which needs driver {needed[0]}.{needed[1]}; "
            f"{driver[0]}.{driver[1]} is loaded",
            "update the driver, or take a torch for an older CUDA",
        )
    ]


__all__ = ["KNOWN", "TRAINERS", "driver_faults", "driver_version", "installed", "torch_cuda", "version_faults"]
