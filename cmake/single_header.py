#!/usr/bin/env python3
"""single_header.py OUT: writes the whole library as one header that needs Eigen alone.

Every #include <heed/...> is replaced by the text it names: a .hpp the first time it is met, anything else (the kernels' text, which is read
once for each instruction set; the parts of the heat map's page) each time. The standard headers stay where they are."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
INCLUDE = re.compile(r"^[ \t]*#[ \t]*include <(heed/[^>]+)>.*\n", flags=re.M)
seen = set()


def text_of(name):
    """The text of a header with all that it includes of heed."""
    if name.endswith(".hpp"):
        if name in seen:
            return ""
        seen.add(name)
    text = (ROOT / "include" / name).read_text()
    text = re.sub(r"^#pragma once\n", "", text, flags=re.M)
    return INCLUDE.sub(lambda found: text_of(found[1]), text)


version = ".".join(re.findall(r"^#define HEED_VERSION_\w+ (\d+)$", (ROOT / "include/heed/version.hpp").read_text(), flags=re.M))
license_text = "".join(f"// {line}".rstrip() + "\n" for line in (ROOT / "LICENSE").read_text().splitlines())
public = sorted(path.name for path in (ROOT / "include/heed").glob("*.hpp") if not path.name.startswith(("heed", "mpi")))  # MPI is not Eigen alone
body = "".join(text_of(f"heed/{name}") for name in ["heed.hpp", *public])
out = pathlib.Path(sys.argv[1])
out.parent.mkdir(parents=True, exist_ok=True)
out.write_text(f"// heed {version}, the whole library in one header, made by `./run single-header`. It needs Eigen.\n//\n{license_text}\n"
               "#pragma once\n\n" + re.sub(r"\n{3,}", "\n\n", body))
