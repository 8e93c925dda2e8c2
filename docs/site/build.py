#!/usr/bin/env python3
"""Builds the site: the pages of the project and the reference of every public name.

build.py FOLDER       writes FOLDER/index.html; exits with 1 at a warning of Doxygen, a link to nothing, or a public name without a page
build.py --read FILE  prints a page or header as Doxygen is to read it (its input filter)

Doxygen's settings are in the Doxyfile beside this program."""
import html.parser
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SITE = ROOT / "docs/site"
PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md")), "CONTRIBUTING.md", "CHANGELOG.md"]
HEADERS = sorted((ROOT / "include/heed").glob("*.hpp"))
DETAIL = sorted((ROOT / "include/heed/detail").glob("*.hpp"))  # which must have nothing outside namespace detail


def name_of(page):
    """The name of a page in the site: guide_performance for docs/performance.md (examples.html is Doxygen's own)."""
    return "guide_" + pathlib.Path(page).stem.lower()


def slug(heading):
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def outside_code(text, change):
    """Applies a function to what is not in a fenced block or a code span."""
    parts = re.split(r"(^```.*?^```$|`[^`\n]*`)", text, flags=re.S | re.M)
    return "".join(part if n % 2 else change(part) for n, part in enumerate(parts))


def page_for_doxygen(path):
    """Gives headings the anchors that links use, and turns links into references, which Doxygen checks."""
    page = str(path.relative_to(ROOT))
    seen = set()

    def heading(match):
        marks, title = match.groups()
        anchor = name_of(page) + ("" if len(marks) == 1 else "-" + slug(title))
        if page == "README.md" and len(marks) == 1 or anchor in seen:
            return match.group(0)
        seen.add(anchor)
        return f"{marks} {title} {{#{anchor}}}"

    def link(match):
        text, target = match.groups()
        if re.match(r"https?:", target):
            return match.group(0)
        file, _, anchor = target.partition("#")
        linked = os.path.normpath(path.parent.relative_to(ROOT) / file) if file else page
        if linked in PAGES:
            start = "index" if linked == "README.md" else name_of(linked)
            return f"[{text}](@ref {name_of(linked) + '-' + anchor if anchor else start})"
        if not (ROOT / linked).exists():
            raise SystemExit(f"{page}: a link to {target}, which does not exist")
        if linked.startswith("include/heed/") and "/detail/" not in linked or linked.startswith("examples/") and linked.endswith(".cpp"):
            return f"[{text}](@ref {pathlib.Path(linked).name})"
        return f"<tt>{linked}</tt>"  # a file that the site does not have

    text = path.read_text()
    text = outside_code(text, lambda part: re.sub(r"(?<!!)\[((?:[^\[\]]|`[^`]*`)*)\]\(([^)\s]+)\)", link, part))
    return outside_code(text, lambda part: re.sub(r"^(#+) (.+)$", heading, part, flags=re.M))


def extra_pages():
    """What stands in no comment: the namespace, the examples, and the purpose of each header, which README.md has in a table."""
    text = ["/** @namespace heed\nEverything public. The pages of the headers have the names by what they are for. */"]
    purposes = {}
    for names, purpose in re.findall(r"^\| (`\w+\.hpp`.*?) \|.*\| (.*?) \|$", (ROOT / "README.md").read_text(), flags=re.M):
        for name in re.findall(r"`(\w+\.hpp)`", names):
            purposes[name] = purpose
    for header in HEADERS:
        if header.name not in purposes:
            raise SystemExit(f"README.md: its table has no header {header.name}")
        text.append(f"/** @file heed/{header.name}\n@brief {purposes[header.name]} */")
    for example in sorted((ROOT / "examples").glob("[0-9]*.cpp")):
        text.append(f"/** @example {example.name}\nIts output is in @ref guide_examples. */")
    return "\n".join(text)


def public_names():
    """The names that the headers declare at namespace scope, as a reader finds them: at the beginning of a line, outside detail."""
    for header in HEADERS + DETAIL:
        text = re.sub(r"^namespace detail \{.*?^\}  // namespace detail$", "", header.read_text(), flags=re.S | re.M)
        text = re.sub(r"^template <.*?>\n(?=\S)", "", text, flags=re.S | re.M)
        for name in re.findall(r"^(?:class|struct|enum class|using) (\w+)\b[^;\n]*[{=:]", text, flags=re.M):
            yield header.name, name
        for name in re.findall(r"^(?!using|static_assert|class|struct|enum|namespace|HEED|inline namespace)(?=\w)[\w:<>,&* ]*?\b(\w+)\(", text, flags=re.M):
            yield header.name, name
        if header in HEADERS:
            for name in re.findall(r"^#define (HEED_\w+)", text, flags=re.M):
                yield header.name, name
    for names in re.findall(r"^\| `\w+\.hpp`.*? \| (.*) \| .*? \|$", (ROOT / "README.md").read_text(), flags=re.M):
        for name in re.findall(r"`(\w+)`", names):
            yield "README.md", name


class Links(html.parser.HTMLParser):
    """The targets of a page's links and pictures, and its anchors."""

    def __init__(self, file):
        super().__init__()
        self.targets, self.anchors = [], set()
        self.feed(file.read_text())

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("id", "name"):
                self.anchors.add(value)
            elif name in ("href", "src") and value and not re.match(r"[a-z]+:", value):
                self.targets.append(value)


def check_links(folder):
    pages = {file.name: Links(file) for file in folder.glob("*.html")}
    for name, page in pages.items():
        for target in page.targets:
            file, _, anchor = target.partition("#")
            if file and not (folder / file).exists():
                yield f"{name}: a link to {target}, which does not exist"
            elif target == "#nested-classes":
                pass  # Doxygen's: of a class whose nested classes are all private
            elif anchor and (file or name) in pages and anchor not in pages[file or name].anchors:
                yield f"{name}: a link to {target}: there is no such place in the page"


def check_names(tags):
    known = set(re.findall(r"<name>(?:\w+::)*(\w+)</name>", tags.read_text()))
    for header, name in public_names():
        if ROOT / "include/heed/detail" / header in DETAIL and not (ROOT / "include/heed" / header).exists():
            yield f"detail/{header}: {name} is public: it belongs in a header of include/heed"
        if name not in known:
            yield f"{header}: {name} is not in the reference"


def build(folder):
    if (folder / "doxygen.css").exists():  # a site of before, whose pages must not count as this one's
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    version = re.findall(r"#define HEED_VERSION_\w+ (\d+)", (ROOT / "include/heed/version.hpp").read_text())
    with tempfile.TemporaryDirectory() as temporary:
        temporary = pathlib.Path(temporary)
        (temporary / "extra.dox").write_text(extra_pages())
        settings = (SITE / "Doxyfile").read_text() + f"""
PROJECT_NUMBER = {".".join(version)}
OUTPUT_DIRECTORY = "{folder}"
GENERATE_TAGFILE = "{temporary / 'tags'}"
INPUT = {" ".join(PAGES)} include/heed include/heed/detail "{temporary}"
INPUT_FILTER = "\\"{sys.executable}\\" docs/site/build.py --read"
"""
        run = subprocess.run(["doxygen", "-"], input=settings, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        problems = [line for line in run.stdout.splitlines() if line.strip()]
        if run.returncode != 0 and not problems:
            problems = [f"doxygen: exit status {run.returncode}"]
        if run.returncode == 0:
            problems += [*check_links(folder), *check_names(temporary / "tags")]
    for problem in problems:
        print(problem)
    if not problems:
        print(folder / "index.html")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    if sys.argv[1:2] == ["--read"] and len(sys.argv) == 3:
        file = pathlib.Path(sys.argv[2]).resolve()
        # A summary is a first sentence, which "et al." does not end.
        print(page_for_doxygen(file) if file.suffix == ".md" else file.read_text().replace("et al. ", "et al.\\ "), end="")
    elif len(sys.argv) == 2 and not sys.argv[1].startswith("-"):
        sys.exit(build(pathlib.Path(sys.argv[1]).resolve()))
    else:
        sys.exit(__doc__)
