#!/usr/bin/env python3
"""heed and its peers side by side: the same inputs, one process, pinned, every output checked against a float64 reference.

The contenders take turns, a few calls each, so that whatever else the machine does hits all of them alike; the figures are those of the
fastest call. A peer that has several ways to say the same thing is shown with its fastest. Calls that take microseconds are left to
heed_bench: here they would measure Python."""
import argparse
import ctypes
import os
import pathlib
import subprocess
import sys
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Workload:
    def __init__(self, name, heads, kv_heads, n_q, n_kv, d, causal=False, bfloat16=False, side_by_side=False, gradient=False):
        self.name, self.heads, self.kv_heads, self.n_q, self.n_kv, self.d = name, heads, kv_heads, n_q, n_kv, d
        self.causal, self.bfloat16, self.side_by_side, self.gradient = causal, bfloat16, side_by_side, gradient

    def empty(self, heads, n):
        """[1, heads, n, d]; with heads side by side the memory is [1, n, heads, d], as projections leave it."""
        if self.side_by_side:
            return np.empty((1, n, heads, self.d), np.float32).transpose(0, 2, 1, 3)
        return np.empty((1, heads, n, self.d), np.float32)

    def inputs(self):
        draw = np.random.default_rng(1)
        arrays = [self.empty(self.heads, self.n_q), self.empty(self.kv_heads, self.n_kv), self.empty(self.kv_heads, self.n_kv)]
        if self.gradient:  # and that of the output
            arrays.append(self.empty(self.heads, self.n_q))
        for a in arrays:
            a[:] = draw.standard_normal(a.shape, dtype=np.float32)
        return [to_float(to_bfloat16(a)) for a in arrays] if self.bfloat16 else arrays

    def operations(self):
        """What is needed for each visible pair and dimension: two products, and five more for the gradient."""
        pairs = self.n_q * (self.n_q + 1) / 2 if self.causal else self.n_q * self.n_kv
        return (14 if self.gradient else 4) * self.heads * self.d * pairs

    def tolerance(self):
        """Far above any honest rounding: it tells an answer to another question, not a less careful one."""
        return 1e-2 if self.bfloat16 else 1e-5


WORKLOADS = [
    *(Workload(f"f32, {h} heads side by side, d={d}, n={n}, {'causal' if causal else 'full'}", h, h, n, n, d, causal, side_by_side=True)
      for h, d, n in ((8, 128, 2048), (16, 64, 2048), (32, 128, 1024), (32, 64, 512)) for causal in (False, True)),
    *(Workload(f"f32, {h} heads, dense, d={d}, n={n}, {'causal' if causal else 'full'}", h, h, n, n, d, causal)
      for h, d, n in ((8, 128, 2048), (16, 64, 2048), (32, 128, 1024)) for causal in (False, True)),
    Workload("f32, d=128, decode, 32/8 heads side by side, n_kv=16384", 32, 8, 1, 16384, 128, side_by_side=True),
    *(Workload(f"f32, d={d}, n={n}, {'causal' if causal else 'full'}", 1, 1, n, n, d, causal)
      for n in (512, 2048, 4096) for d in (64, 128) for causal in (False, True)),
    *(Workload(f"bf16, d={d}, n=2048, {'causal' if causal else 'full'}", 1, 1, 2048, 2048, d, causal, True)
      for d in (64, 128) for causal in (False, True)),
    *(Workload(f"f32, forward + backward, d={d}, n={n}, {'causal' if causal else 'full'}", 1, 1, n, n, d, causal, gradient=True)
      for d in (64, 128) for n in (512, 2048, 4096) for causal in (False, True) if (d, n) != (128, 4096)),
    *(Workload(f"bf16, forward + backward, d={d}, n=2048, {'causal' if causal else 'full'}", 1, 1, 2048, 2048, d, causal, True, gradient=True)
      for d in (64, 128) for causal in (False, True)),
    *(Workload(f"f32, forward + backward, {h} heads side by side, d={d}, n=1024, {'causal' if causal else 'full'}", h, h, 1024, 1024, d, causal,
               side_by_side=True, gradient=True)
      for h, d in ((16, 64), (8, 128)) for causal in (False, True)),
    Workload("f32, d=128, decode, 32/8 heads, n_kv=65536", 32, 8, 1, 65536, 128),
    Workload("bf16, d=128, decode, 32/8 heads, n_kv=65536", 32, 8, 1, 65536, 128, bfloat16=True),
]


def to_bfloat16(x):
    """The bits of the nearest bfloat16, ties to even."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def to_float(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def reference(workload, query, key, value, grad_out=None):
    """[softmax(Q K^T / sqrt(d)) V], or the gradients [dQ, dK, dV], in float64, a block of rows at a time."""
    scale = 1 / np.sqrt(workload.d)
    results = [np.zeros(x.shape) for x in ((query,) if grad_out is None else (query, key, value))]
    for h in range(workload.heads):
        kv = h // (workload.heads // workload.kv_heads)
        k, v = key[0, kv].astype(np.float64), value[0, kv].astype(np.float64)
        for first in range(0, workload.n_q, 512):
            rows = slice(first, min(first + 512, workload.n_q))
            q = query[0, h, rows].astype(np.float64)
            scores = q @ k.T * scale
            if workload.causal:
                i = np.arange(rows.start, rows.stop)[:, None]
                scores[np.arange(workload.n_kv)[None, :] > i] = -np.inf
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            if grad_out is None:
                results[0][0, h, rows] = weights @ v
                continue
            grad = grad_out[0, h, rows].astype(np.float64)
            grad_weights = grad @ v.T
            grad_scores = weights * (grad_weights - (weights * grad_weights).sum(axis=1, keepdims=True)) * scale
            results[0][0, h, rows] = grad_scores @ k
            results[1][0, kv] += grad_scores.T @ q
            results[2][0, kv] += weights.T @ grad
    return results


# A contender: a name, and prepare(workload, inputs, threads), which yields (form, call, result) for each way it has to compute this:
# call() is what is timed, result() then gives the last outputs as floats: that of attention, or its gradients.


class Heed:
    name = "heed"

    def __init__(self, build):
        library = build / "libheed_shim.so"
        compiler = os.environ.get("CXX", "c++").split()
        eigen = next((p for p in os.environ.get("EIGEN", "/usr/include/eigen3:/usr/local/include/eigen3").split(":") if os.path.isdir(p)), None)
        if eigen is None:
            sys.exit("compare.py: Eigen is not in /usr/include/eigen3; say where it is: EIGEN=DIR")
        source = pathlib.Path(__file__).with_name("heed_shim.cpp")
        subprocess.run([*compiler, "-std=c++17", "-O2", "-shared", "-fPIC", f"-I{ROOT}/include", "-isystem", eigen, source, "-o", library,
                        "-pthread"], check=True)
        shim = ctypes.CDLL(str(library))
        self.forward, self.train = shim.heed_forward, shim.heed_forward_backward
        sizes = [ctypes.c_long] * 5 + [ctypes.c_int] * 4
        self.forward.argtypes = [ctypes.c_void_p] * 4 + sizes
        self.train.argtypes = [ctypes.c_void_p] * 9 + sizes

    def prepare(self, w, inputs, threads):
        arrays = [to_bfloat16(a) for a in inputs] if w.bfloat16 else inputs

        def room(heads, n):
            return np.empty((1, heads, n, w.d), np.uint16) if w.bfloat16 else w.empty(heads, n)

        out = room(w.heads, w.n_q)
        results = [room(w.heads, w.n_q), room(w.kv_heads, w.n_kv), room(w.kv_heads, w.n_kv)] if w.gradient else [out]
        lse = np.empty(w.heads * w.n_q, np.float32)
        memory = [*arrays, out, *([lse, *results] if w.gradient else [])]
        arguments = [a.ctypes.data for a in memory]
        arguments += [w.heads, w.kv_heads, w.n_q, w.n_kv, w.d, w.causal, threads, w.bfloat16, w.side_by_side]
        run = self.train if w.gradient else self.forward

        def call(keep=memory):  # the arguments are bare addresses: hold what they point to
            if run(*arguments):
                raise RuntimeError("heed refused the call")

        yield "", call, lambda: [to_float(x) for x in results] if w.bfloat16 else results


class OnnxRuntime:
    """Three operators mean attention here; which is fastest depends on the workload."""
    name = "ONNX Runtime"

    def __init__(self):
        import onnx
        import onnxruntime
        self.onnx, self.runtime = onnx, onnxruntime

    def load(self, node, inputs, outputs, threads, microsoft):
        helper = self.onnx.helper
        infos = [helper.make_tensor_value_info(name, self.onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for name, a in inputs.items()]
        outs = [helper.make_tensor_value_info(name, self.onnx.TensorProto.FLOAT, None) for name in outputs]
        opsets = [helper.make_opsetid("", 23)] + ([helper.make_opsetid("com.microsoft", 1)] if microsoft else [])
        model = helper.make_model(helper.make_graph([node], "attention", infos, outs), opset_imports=opsets, ir_version=10)
        options = self.runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 4
        return self.runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def runner(self, node, inputs, threads, microsoft):
        session = self.load(node, inputs, ["y"], threads, microsoft)
        last = [None]

        def call():
            last[0] = session.run(["y"], inputs)[0]

        return call, lambda: [last[0]]

    def prepare(self, w, inputs, threads):
        if w.bfloat16 or w.gradient:
            return
        make = self.onnx.helper.make_node
        query, key, value = inputs

        def packed(x):
            return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(1, x.shape[2], -1)

        def unpacked(session):
            call, result = session
            return call, lambda: [result()[0].reshape(1, w.n_q, w.heads, w.d).transpose(0, 2, 1, 3)]

        three = {"q": packed(query), "k": packed(key), "v": packed(value)}
        if w.side_by_side:
            node = make("Attention", ["q", "k", "v"], ["y"], is_causal=int(w.causal), q_num_heads=w.heads, kv_num_heads=w.kv_heads)
            yield "Attention", *unpacked(self.runner(node, three, threads, False))
        else:
            node = make("Attention", ["q", "k", "v"], ["y"], is_causal=int(w.causal))
            yield "Attention", *self.runner(node, {"q": query, "k": key, "v": value}, threads, False)
        if w.heads == w.kv_heads:
            node = make("MultiHeadAttention", ["q", "k", "v"], ["y"], domain="com.microsoft", num_heads=w.heads, unidirectional=int(w.causal))
            yield "MultiHeadAttention", *unpacked(self.runner(node, three, threads, True))
        if w.causal or w.n_q == 1:  # always causal
            yield "GroupQueryAttention", *unpacked(self.group_query(w, three, key, value, threads))

    def group_query(self, w, three, key, value, threads):
        """As a decoder uses it: the cache is a buffer that the call reads, and appends the newest n_q keys and values to, in place."""
        past = w.n_kv - w.n_q
        caches = {"past_k": np.zeros_like(key), "past_v": np.zeros_like(value)}
        caches["past_k"][:, :, :past], caches["past_v"][:, :, :past] = key[:, :, :past], value[:, :, :past]
        inputs = {"q": three["q"], "k": three["k"][:, past:], "v": three["v"][:, past:]}
        lengths = {"last": np.array([w.n_kv - 1], np.int32), "total": np.array([w.n_kv], np.int32)}
        node = self.onnx.helper.make_node("GroupQueryAttention", ["q", "k", "v", "past_k", "past_v", "last", "total"],
                                          ["y", "present_k", "present_v"], domain="com.microsoft", num_heads=w.heads, kv_num_heads=w.kv_heads)
        session = self.load(node, {**inputs, **caches, **lengths}, ["y", "present_k", "present_v"], threads, True)
        binding = session.io_binding()
        for name, array in {**inputs, **lengths}.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(array))
        for name, array in caches.items():
            buffer = self.runtime.OrtValue.ortvalue_from_numpy(array)
            binding.bind_ortvalue_input(name, buffer)
            binding.bind_ortvalue_output(name.replace("past", "present"), buffer)
        binding.bind_output("y", "cpu")
        return lambda: session.run_with_iobinding(binding), lambda: [binding.get_outputs()[-1].numpy()]


class OpenVino:
    name = "OpenVINO"

    def __init__(self):
        import openvino
        import openvino.opset13
        self.ov, self.ops = openvino, openvino.opset13

    def prepare(self, w, inputs, threads):
        if w.heads != w.kv_heads or w.gradient:
            return
        kind = self.ov.Type.bf16 if w.bfloat16 else self.ov.Type.f32
        order = [0, 2, 1, 3]
        if w.side_by_side:  # the layout of its own models: transposes around the operator, which it takes into it
            inputs = [a.transpose(order) for a in inputs]
        parameters = [self.ops.parameter(a.shape, kind) for a in inputs]
        heads_first = [self.ops.transpose(x, order) for x in parameters] if w.side_by_side else parameters
        node = self.ops.scaled_dot_product_attention(*heads_first, causal=w.causal)
        if w.side_by_side:
            node = self.ops.transpose(node, order)
        model = self.ov.Model([node], parameters, "attention")
        compiled = self.ov.Core().compile_model(model, "CPU", {
            "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "bf16" if w.bfloat16 else "f32",
            "ENABLE_CPU_PINNING": False})
        request = compiled.create_infer_request()
        arrays = [to_bfloat16(a) for a in inputs] if w.bfloat16 else inputs
        tensors = [self.ov.Tensor(a, a.shape, kind) if w.bfloat16 else self.ov.Tensor(a, shared_memory=True) for a in arrays]
        for i, tensor in enumerate(tensors):
            request.set_input_tensor(i, tensor)

        def result(keep=arrays):  # a tensor looks at its array
            data = request.get_output_tensor(0).data
            # numpy has no bfloat16: the same bytes, seen as 16-bit integers
            if w.bfloat16:
                return [to_float(np.frombuffer(data.tobytes(), np.uint16).reshape(inputs[0].shape))]
            return [data.transpose(order) if w.side_by_side else data]

        yield "ScaledDotProductAttention", request.infer, result


class Torch:
    name = "PyTorch"

    def __init__(self):
        import torch
        self.torch = torch

    def prepare(self, w, inputs, threads):
        torch = self.torch
        torch.set_num_threads(threads)
        tensors = [torch.from_numpy(a).to(torch.bfloat16 if w.bfloat16 else torch.float32) for a in inputs]
        q, k, v = (x.requires_grad_(w.gradient) for x in tensors[:3])
        last = [None]

        def call():
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=w.causal, enable_gqa=w.heads != w.kv_heads)
            last[0] = torch.autograd.grad(out, (q, k, v), tensors[3]) if w.gradient else (out,)

        yield "scaled_dot_product_attention", call, lambda: [x.float().numpy() for x in last[0]]


class Entry:
    """One way of one contender to compute a workload, and the fastest call seen."""

    def __init__(self, contender, form, call, result):
        self.contender, self.form, self.call, self.result, self.best, self.error = contender, form, call, result, float("inf"), None

    def take_turn(self, seconds):
        self.call()  # threads and caches wake up outside the clock
        end = time.perf_counter() + seconds
        while True:
            start = time.perf_counter()
            self.call()
            now = time.perf_counter()
            self.best = min(self.best, now - start)
            if now >= end:
                return


def compare(workload, contenders, threads, rounds, seconds):
    """All entries that can compute the workload, checked and timed."""
    inputs = workload.inputs()
    expected = reference(workload, *inputs)
    entries = []
    for contender in contenders:
        forms = contender.prepare(workload, inputs, threads)
        while True:
            try:
                entry = Entry(contender, *next(forms))
                entry.call()
            except StopIteration:
                break
            except Exception as error:  # whatever a peer throws where it cannot do this
                print(f"  {contender.name} cannot do '{workload.name}': {str(error).splitlines()[0][:110]}", file=sys.stderr)
                continue
            entry.error = max(np.linalg.norm(x - y) / np.linalg.norm(y) for x, y in zip(entry.result(), expected))
            entries.append(entry)
    for _ in range(rounds):
        for entry in entries:
            entry.take_turn(seconds)
            time.sleep(0.02)  # a pool's threads look for work a while before they sleep: not into the next turn
    return entries


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/peers", help="where heed's shared library is built")
    parser.add_argument("--torch", action="store_true", help="compare with PyTorch too")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--filter", default="", help="only workloads whose name contains this")
    parser.add_argument("--every-form", action="store_true", help="show all ways of a peer, not only its fastest")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.15, help="of each turn")
    arguments = parser.parse_args()

    cpus = sorted(os.sched_getaffinity(0))
    if max(arguments.threads) > len(cpus):
        print(f"Only {len(cpus)} CPUs: leaving out larger --threads", file=sys.stderr)
    workloads = [w for w in WORKLOADS if arguments.filter in w.name]
    if not workloads:
        sys.exit(f"compare.py: no workload's name contains '{arguments.filter}': " + "; ".join(w.name for w in WORKLOADS))
    arguments.build.mkdir(parents=True, exist_ok=True)
    contenders = [Heed(arguments.build), OnnxRuntime(), OpenVino()] + ([Torch()] if arguments.torch else [])

    wrong = 0
    for threads in (t for t in arguments.threads if t <= len(cpus)):
        os.sched_setaffinity(0, cpus[-threads:])  # the last CPUs: the first often serves interrupts
        print(f"\n{threads} thread{'s' if threads > 1 else ''}, on CPU {', '.join(map(str, cpus[-threads:]))}")
        print(f"{'workload':68} {'contender':42} {'ms':>9} {'GFLOP/s':>8} {'heed is':>9} {'error':>8}")
        for workload in workloads:
            entries = compare(workload, contenders, threads, arguments.rounds, arguments.seconds)
            ours = next((e.best for e in entries if e.contender.name == "heed"), float("nan"))
            for contender in contenders:
                mine = [e for e in entries if e.contender is contender]
                if not mine:
                    continue
                right = [e for e in mine if e.error <= workload.tolerance()]
                wrong += len(mine) - len(right)
                fastest = [min(right or mine, key=lambda e: e.best)]
                for entry in mine if arguments.every_form else fastest:
                    name = f"{contender.name}, {entry.form}" if entry.form else contender.name
                    times = f"{entry.best / ours:8.2f}x" if contender.name != "heed" else ""
                    print(f"{workload.name:68} {name:42} {entry.best * 1e3:9.3f} {workload.operations() / entry.best * 1e-9:8.1f} "
                          f"{times:>9} {entry.error:8.1e}{'' if entry in right else '  WRONG'}", flush=True)
    os.sched_setaffinity(0, cpus)
    if wrong:
        sys.exit(f"compare.py: {wrong} outputs were not attention's")


if __name__ == "__main__":
    main()
