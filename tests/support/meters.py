"""Trees and tools that meters read, made up."""

from __future__ import annotations

from pathlib import Path

from lowtide.meters import Roots

# What tells a machine that runs from all others, and from itself at other times.
BOOT = "proc/sys/kernel/random/boot_id"


def tree(root: Path, files: dict[str, str]) -> Roots:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Roots(sysfs=root / "sys", procfs=root / "proc")


def rapl_tree(root: Path, package: str = "258218293244", dram: str = "1000000") -> Roots:
    base = "sys/class/powercap"
    return tree(
        root,
        {
            f"{base}/intel-rapl:0/name": "package-0\n",
            f"{base}/intel-rapl:0/energy_uj": f"{package}\n",
            f"{base}/intel-rapl:0/max_energy_range_uj": "262143328850\n",
            f"{base}/intel-rapl:0:0/name": "core\n",
            f"{base}/intel-rapl:0:0/energy_uj": "5\n",
            f"{base}/intel-rapl:0:1/name": "dram\n",
            f"{base}/intel-rapl:0:1/energy_uj": f"{dram}\n",
            f"{base}/intel-rapl:0:1/max_energy_range_uj": "65712999613\n",
        },
    )


def hanging(folder: Path, name: str) -> None:
    """A tool that says nothing, for ever."""
    path = folder / name
    path.write_text("#!/bin/sh\nexec sleep 60\n")
    path.chmod(0o755)


def tool(folder: Path, name: str, says: str, *, status: int = 0) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\nexit {status}\n")
    path.chmod(0o755)
