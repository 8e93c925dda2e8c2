#!/usr/bin/env python3
"""SmolLM2-135M on heed and on llama.cpp, side by side: reading a page of 893 tokens, then writing 64.

Build the example first (./run chat --help does). --install fetches and compiles llama-cpp-python, which takes a while, into build/peers. The
contenders take turns on the same pinned CPUs, and the figures are those of the fastest run. What llama.cpp keeps as f32 it computes as heed does,
so there the tokens must be the same; with Q4_1 it rounds the activations to 8 bits, and a token may differ where two are about equally likely."""
import argparse
import ctypes
import json
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
VENV = ROOT / "build/peers"
PROGRAM = ROOT / "build/demo/examples/smollm2/smollm2"
LENGTH, RUNS = 64, 3  # as `smollm2 --bench` does


def install():
    if not (VENV / "bin/python").exists():
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    print("Installing llama-cpp-python into build/peers", flush=True)
    environment = {**os.environ, "CMAKE_ARGS": "-DGGML_NATIVE=ON"}  # for this CPU, as the example is built
    subprocess.run([VENV / "bin/pip", "install", "-q", "numpy", "llama-cpp-python"], env=environment, check=True)


class Heed:
    def __init__(self, cache):
        self.name, self.cache = f"heed, Q4_1, {cache} cache", cache

    def run(self, prompt, threads):
        command = [PROGRAM, "--bench", "--threads", str(threads), "--cache", self.cache]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        line = re.search(rf"^ +{threads} +(\d+) +[\d.]+ % +(\d+) ", output, re.MULTILINE)
        if not line or f"prompt of {len(prompt)} tokens" not in output:
            sys.exit(f"smollm2.py: cannot read what {PROGRAM} says:\n{output}")
        written = [int(t) for t in output.partition("wrote tokens")[2].split()]
        return int(line[1]), int(line[2]), written


class LlamaCpp:
    def __init__(self, file, name, cache):
        self.model = llama.llama_model_load_from_file(str(file).encode(), llama.llama_model_default_params())
        if not self.model:
            sys.exit(f"smollm2.py: llama.cpp cannot load {file}")
        self.name, self.type = f"llama.cpp, {name}, {cache} cache", {"f32": 0, "f16": 1}[cache]

    def run(self, prompt, threads):
        parameters = llama.llama_context_default_params()
        parameters.n_ctx, parameters.n_batch = len(prompt) + LENGTH, len(prompt)
        parameters.n_threads = parameters.n_threads_batch = threads
        parameters.type_k = parameters.type_v = self.type
        context = llama.llama_init_from_model(self.model, parameters)
        words = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.model))

        def read(tokens):
            array = (ctypes.c_int32 * len(tokens))(*tokens)  # the batch is a bare address: hold what it points to
            if llama.llama_decode(context, llama.llama_batch_get_one(array, len(tokens))):
                sys.exit("smollm2.py: llama.cpp cannot read its tokens")
            return int(np.ctypeslib.as_array(llama.llama_get_logits_ith(context, -1), (words,)).argmax())

        best_read = best_write = float("inf")
        read([1])  # threads and buffers wake up outside the clock
        for _ in range(RUNS):
            llama.llama_memory_clear(llama.llama_get_memory(context), True)
            start = time.perf_counter()
            written = [read(prompt)]
            middle = time.perf_counter()
            while len(written) <= LENGTH:
                written.append(read(written[-1:]))
            best_read, best_write = min(best_read, middle - start), min(best_write, time.perf_counter() - middle)
        llama.llama_free(context)
        return len(prompt) / best_read, LENGTH / best_write, written[:LENGTH]


def as_f32(file):
    """The same weights, stored as f32."""
    target = VENV / "SmolLM2-135M-Instruct.f32.gguf"
    if not target.exists():
        parameters = llama.llama_model_quantize_default_params()
        parameters.ftype, parameters.allow_requantize, parameters.pure = 0, True, True
        part = target.with_suffix(".part")
        if llama.llama_model_quantize(str(file).encode(), str(part).encode(), ctypes.byref(parameters)):
            sys.exit(f"smollm2.py: llama.cpp cannot store {file} as f32")
        part.replace(target)
    return target


def agreement(written, right):
    """How many tokens are the same before the first that is not."""
    return next((i for i, (a, b) in enumerate(zip(written, right)) if a != b), len(right))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", action="store_true", help="install llama-cpp-python first")
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--filter", default="", help="only contenders whose name contains this")
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.install:
        install()
    global llama, np
    try:
        import llama_cpp as llama
        import numpy as np
    except ImportError:
        python = VENV / "bin/python"
        if not python.exists() or pathlib.Path(sys.prefix) == VENV:
            sys.exit("smollm2.py: llama-cpp-python is not installed; --install does that")
        os.execv(python, [python, __file__, *(a for a in sys.argv[1:] if a != "--install")])
    if not PROGRAM.exists():
        sys.exit(f"smollm2.py: {PROGRAM} is not built; ./run chat --help builds it")

    VENV.mkdir(parents=True, exist_ok=True)
    silent = llama.llama_log_callback(lambda *_: None)
    llama.llama_log_set(silent, None)
    llama.llama_backend_init()
    file = subprocess.run([sys.executable, ROOT / "examples/smollm2/fetch.py"], check=True, capture_output=True, text=True).stdout.strip()
    prompt = json.loads((ROOT / "tests/smollm2/data/chat_long.json").read_text())["prompt_ids"]
    f32 = as_f32(file)
    everybody = [Heed("float"), Heed("bfloat16"), LlamaCpp(file, "Q4_1", "f16"), LlamaCpp(f32, "f32", "f16"), LlamaCpp(f32, "f32", "f32")]
    contenders = [c for c in everybody if arguments.filter in c.name]
    if not contenders:
        sys.exit(f"smollm2.py: no contender's name contains '{arguments.filter}': " + "; ".join(c.name for c in everybody))

    cpus = sorted(os.sched_getaffinity(0))
    differ = False
    for threads in arguments.threads:
        if threads > len(cpus):
            sys.exit(f"smollm2.py: {threads} threads, but only {len(cpus)} CPUs")
        os.sched_setaffinity(0, cpus[-threads:])  # the last CPUs: the first often serves interrupts
        results = {c.name: [0, 0, None] for c in contenders}
        for _ in range(arguments.rounds):
            for c in contenders:
                read, write, written = c.run(prompt, threads)
                best = results[c.name]
                best[0], best[1], best[2] = max(best[0], read), max(best[1], write), written
        right = results[contenders[0].name][2]
        print(f"\n{threads} thread{'s' if threads > 1 else ''}, on CPU {', '.join(map(str, cpus[-threads:]))}")
        print(f"{'':34} {'read, tokens/s':>14} {'write, tokens/s':>16} {'same tokens':>15}")
        for name, (read, write, written) in results.items():
            print(f"{name:34} {read:14.0f} {write:16.0f} {agreement(written, right):12} of {LENGTH}"[:96], flush=True)
        in_float = [written for name, (_, _, written) in results.items() if name in (everybody[0].name, everybody[-1].name)]
        differ = differ or in_float[1:] != in_float[:-1]
    os.sched_setaffinity(0, cpus)
    if differ:
        sys.exit("smollm2.py: llama.cpp writes other tokens with the same weights, all in float")


if __name__ == "__main__":
    main()
