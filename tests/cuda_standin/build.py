"""Builds the stand-in for the CUDA packages of one environment, with gcc.

    python -m tests.cuda_standin.build ENVIRONMENT FOLDER

ENVIRONMENT is a virtual environment with a CUDA build of torch. FOLDER receives three libraries; `environment_of` says
how a process uses them. Functions that PyTorch needs and the sources do not have are generated: they return success.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

HERE = Path(__file__).parent
_TORCH = ("libc10_cuda.so", "libtorch_cuda.so", "libtorch_python.so", "libtorch_cpu.so", "libtorch_cuda_linalg.so")
_DEFINED = re.compile(r"^[A-Za-z_][\w \*]*?\b(\w+)\([^;]*?\)\s*\{", re.MULTILINE)


def _undefined(library: Path, pattern: str) -> set[str]:
    """The names that a library takes from others, as far as they match."""
    listed = subprocess.run(["nm", "-D", "--undefined-only", library], check=True, capture_output=True, text=True)
    return set(re.findall(rf" U ({pattern})(?:@|$)", listed.stdout, re.MULTILINE))


def _generated(wanted: Iterable[str], source: str, body: str) -> str:
    """A C file: stubs for what is wanted and not defined in ``source``."""
    missing = sorted(set(wanted) - set(_DEFINED.findall(source)))
    return "\n".join(body.format(name=name) for name in missing) + "\n"


def build(environment: Path, folder: Path) -> None:
    """Write the libraries into ``folder``. Raises CalledProcessError where gcc or nm fails."""
    (site,) = environment.glob("lib/python3.*/site-packages")
    torch = site / "torch"
    folder.mkdir(parents=True, exist_ok=True)
    runtime = {name for library in _TORCH for name in _undefined(torch / "lib" / library, r"(?:__)?cuda[A-Za-z]\w*")}
    products = {name for library in _TORCH for name in _undefined(torch / "lib" / library, r"cublas\w*")}
    driver = _undefined(torch / "lib/libcaffe2_nvrtc.so", r"cu[A-Z]\w*")
    driver |= set(re.findall(r"_\((cu\w+),", (torch / "include/c10/cuda/driver_api.h").read_text()))
    known = {name: (HERE / f"{name}.c").read_text() for name in ("runtime", "blas", "driver")}
    noted = 'int {name}(void) {{ standin_note("{name}"); return 0; }}'
    generated = folder / "generated.c", folder / "generated_driver.c"
    stubs = _generated(runtime, known["runtime"], noted) + _generated(products, known["blas"], noted)
    generated[0].write_text('#include "standin.h"\n' + stubs)
    generated[1].write_text(_generated(driver, known["driver"], "int {name}(void) {{ return 0; }}"))
    headers = [f"-I{HERE}", f"-I{HERE / 'include'}", *(f"-I{path}" for path in site.glob("nvidia/*/include"))]
    for name, sources in (
        ("libstandin.so", [HERE / "runtime.c", HERE / "blas.c", generated[0]]),
        ("libcuda.so.1", [HERE / "driver.c", generated[1]]),
        ("libnvidia-ml.so.1", [HERE / "nvml.c"]),
    ):
        command = ["gcc", "-O1", "-fPIC", "-shared", "-w", f"-Wl,-soname,{name}", "-o", folder / name, *headers]
        subprocess.run([*command, *sources, "-ldl", "-lpthread"], check=True)


def environment_of(folder: Path) -> Mapping[str, str]:
    """The variables of a process that uses the libraries in ``folder``."""
    paths = [str(folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    preloaded = str(folder / "libstandin.so")
    return {
        **os.environ,
        "LD_PRELOAD": preloaded,
        "LD_LIBRARY_PATH": os.pathsep.join(paths),
        "CUDA_STANDIN": preloaded,
        "TORCH_DISABLE_ADDR2LINE": "1",  # stacks of the allocator's history are read slowly, and by nobody
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environment", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    build(options.environment, options.folder)
