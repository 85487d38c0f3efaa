#!/usr/bin/env python3
"""Run the OpenCL engine's tests on Intel's OpenCL runtime for CPUs, in an environment that is kept between runs.

    python3 scripts/test_opencl.py [arguments for pytest]
    python3 scripts/test_opencl.py --second-opinions [arguments for pytest on pocl]
    python3 scripts/test_opencl.py --offline [arguments for scripts/opencl_offline.py]

The second runs the kernels' plain spelling on Debian's pocl (every test but the embedded model's) and under oclgrind
(every kernel and format once), and requires both; without the option they run if they are installed.
The third builds all kernels with Intel's own compiler for its GPUs, and compares them with the record.

The environment is an overlay of the .venv of ``make test`` with pyopencl and Intel's runtime (0.8 GB), in the user's
cache folder under a hash of the pinned versions and the path of .venv. It is created under another name and renamed
when it is complete. This script writes the file for OpenCL's loader, because the wheel of the runtime does not.
Standard library only.
"""

import os
import shutil
import subprocess
import sys

from environments import as_program, overlay
from setup import ROOT, SetupError

PINS = ["pyopencl==2026.1.4", "intel-opencl-rt==2026.2.0", "intel-cmplr-lib-rt==2026.2.0"]
NEEDED = 2 << 30
"""Bytes that making the environment takes, with what is unpacked on the way."""
POCL = "/etc/OpenCL/vendors/pocl.icd"
UNDER_OCLGRIND = ["tests/engines/opencl/test_once.py", "-k", "plain"]
"""Every kernel and every format in the smallest shapes: oclgrind interprets each work-item."""
ON_POCL = ["tests/engines/opencl", "-k", "plain and not best and not embedded"]
ALONE, OFFLINE = "--second-opinions", "--offline"
TESTS = ["tests/engines/opencl", "tests/engines/test_every_engine.py"]
AT_ONCE = ["-n", "auto", "--maxprocesses", "2", "--dist", "loadgroup"]
"""The runtime compiles kernels one at a time in a process, which is most of a first run; two hold 10 GB of programs."""


def main(arguments):
    python = os.path.join(ROOT, ".venv", "bin", "python")
    if not os.path.exists(python):
        raise SetupError("there is no .venv yet", "make test-opencl makes it first")
    if arguments[:1] == [OFFLINE]:
        return subprocess.run([python, os.path.join(ROOT, "scripts", "opencl_offline.py")] + arguments[1:]).returncode
    folder = environment(python)
    if arguments[:1] == [ALONE]:
        packages = {"pocl-opencl-icd": os.path.exists(POCL), "oclgrind": oclgrind()}
        missing = [package for package, there in packages.items() if not there]
        if missing:
            raise SetupError("not installed: " + ", ".join(missing), "apt install " + " ".join(missing))
        return second_opinions([os.path.join(folder, "bin", "python"), "-m", "pytest"], arguments[1:])
    return run(folder, arguments)


def say(text):
    print("opencl: " + text)
    sys.stdout.flush()


def environment(python):
    """The folder of the environment; created if missing."""
    return overlay(python, "opencl", PINS, NEEDED, say, "275 MB")


def variables(folder):
    """What makes OpenCL's loader find the runtime, and nothing else."""
    libraries = os.path.join(folder, "lib")
    vendors = os.path.join(folder, "vendors")
    os.makedirs(vendors, exist_ok=True)
    with open(os.path.join(vendors, "intel.icd"), "w") as icd:
        icd.write(os.path.join(libraries, "libintelocl.so") + "\n")
    before = os.environ.get("LD_LIBRARY_PATH")
    path = libraries + (os.pathsep + before if before else "")
    return dict(os.environ, OCL_ICD_VENDORS=vendors, LD_LIBRARY_PATH=path)


def run(folder, arguments):
    tests = arguments or TESTS
    say("running {}".format(" ".join(tests)))
    pytest = [os.path.join(folder, "bin", "python"), "-m", "pytest"]
    failed = subprocess.run(pytest + AT_ONCE + tests, env=variables(folder), cwd=ROOT).returncode
    return failed or (0 if arguments else second_opinions(pytest))


def oclgrind():
    return shutil.which("oclgrind")


def second_opinions(pytest, on_pocl=()):
    """The plain spelling on pocl, and under oclgrind no race and no access out of bounds: where these are installed."""
    if os.path.exists(POCL):
        say("the same on pocl")
        environment = dict(os.environ, OCL_ICD_VENDORS=POCL)
        if subprocess.run(pytest + (list(on_pocl) or ON_POCL), env=environment, cwd=ROOT).returncode:
            return 1
    else:
        say("pocl is not installed (apt install pocl-opencl-icd): not run on it")
    if not oclgrind():
        say("oclgrind is not installed (apt install oclgrind): kernels are not looked at for races")
        return 0
    say("a few steps under oclgrind")
    build = os.path.join(ROOT, "build")
    os.makedirs(build, exist_ok=True)
    log = os.path.join(build, "oclgrind.log")
    command = [oclgrind(), "--data-races", "--log", log] + pytest + UNDER_OCLGRIND
    environment = dict(os.environ, OCL_ICD_VENDORS=build)  # no other platform than its own
    failed = subprocess.run(command, env=environment, cwd=ROOT).returncode
    with open(log) as lines:
        found = lines.read()
    sys.stderr.write(found)
    return failed or (1 if found.strip() else 0)


if __name__ == "__main__":
    as_program(main)
