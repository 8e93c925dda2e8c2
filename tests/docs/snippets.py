#!/usr/bin/env python3
"""snippets.py FILE [mpi]: writes one C++ program that runs every piece of code in the pages (```cpp) and above the functions (@code), each a
function of its own; with mpi, those for many ranks, without it the others. Fails where a name of README.md's table occurs in
none of them."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
HEADERS = sorted((ROOT / "include/heed").rglob("*.hpp"))
FOR_MPI = re.compile(r"mpi\w*\.hpp|distributed\.md")
INCLUDES = ["cassert", "cmath", "cstdint", "fstream", "functional", "heed/heatmap.hpp", "heed/heed.hpp", "iostream", "string", "vector"]


def snippets():
    """(file, line, code) of each."""
    for page in PAGES:
        text = page.read_text()
        for match in re.finditer(r"^```cpp\n(.*?)^```$", text, flags=re.S | re.M):
            # Kernels that are compiled once stand at namespace scope and may be defined once: src/ is that program.
            if "HEED_DEFINE_KERNELS" not in match[1]:
                yield page, text.count("\n", 0, match.start(1)) + 1, match[1]
    for header in HEADERS:
        text = header.read_text()
        for match in re.finditer(r"^ */// @code\n(.*?)^ */// @endcode$", text, flags=re.S | re.M):
            yield header, text.count("\n", 0, match.start(1)) + 1, re.sub(r"^ */// ?", "", match[1], flags=re.M)


def function(number, file, line, code):
    """A program's main is the function; anything else is its body."""
    code = re.sub(r"^#include .*$", "", code, flags=re.M)
    if "int main() {" in code:
        code = code.replace("int main() {", f"void snippet_{number}() {{")
    else:
        code = f"void snippet_{number}() {{\n#line {line} \"{file}\"\n{code}}}\n"
    return f"#line {line} \"{file}\"\n{code}"


def main(output, mpi=False):
    found = list(snippets())
    everything = "\n".join(code for _, _, code in found)
    table = re.findall(r"^\| `\w+\.hpp`.*? \| (.*) \| .*? \|$", (ROOT / "README.md").read_text(), flags=re.M)
    missing = [name for names in table for name in re.findall(r"`([a-z]\w+)`", names) if not re.search(rf"\b{name}\b", everything)]
    if missing or not found or not table:
        sys.exit("README.md names what no piece of code in the documentation shows: " + ", ".join(missing))
    found = [snippet for snippet in found if bool(FOR_MPI.fullmatch(snippet[0].name)) == mpi]
    everything = "\n".join(code for _, _, code in found)
    includes = sorted({f"#include <{name}>" for name in INCLUDES} | set(re.findall(r"^#include .*$", everything, flags=re.M)))
    functions = [function(number, *snippet) for number, snippet in enumerate(found)]
    calls = "".join(f"  snippet_{number}();\n" for number in range(len(found)))
    if mpi:
        includes.append("#include <heed/mpi.hpp>")
        calls = f"  MPI_Init(nullptr, nullptr);\n{calls}  MPI_Finalize();\n"
    text = "\n".join([*includes, "", *functions, f'#line 1 "main"\nint main() {{\n{calls}  std::cout << "{len(found)} pieces of code ran\\n";\n}}\n'])
    pathlib.Path(output).write_text(text)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] == ["mpi"]) if sys.argv[1:] else sys.exit(__doc__)
