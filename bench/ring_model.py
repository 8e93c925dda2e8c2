#!/usr/bin/env python3
"""What attention over many ranks costs, from three figures of a machine: GFLOP/s of a rank, latency and bandwidth between two.

./run ring                                                     # measures them, and prints the call
bench/ring_model.py --gflops 4600 --latency 2 --bandwidth 12.5 # nodes of 64 cores, links of 100 Gb/s
bench/ring_model.py ... --measured 2,16384,0.61                # holds the model against 0.61 s of 2 ranks and 16,384 tokens, causal

docs/distributed.md explains the model. Exits with 1 where a measurement is further from it than --within."""
import argparse
import sys

RANKS = [2, 8, 32, 128, 512, 1024]
LENGTHS = {"128K": 1 << 17, "1M": 1 << 20, "10M": 10 << 20}


class Model:
    """heads, kv_heads, head_dim, bytes of a number, and the machine: FLOP/s, seconds of latency, bytes/s."""

    def __init__(self, args):
        self.heads, self.kv_heads, self.head_dim, self.bytes = args.heads, args.kv_heads, args.head_dim, args.bytes
        self.flops, self.latency, self.bandwidth, self.overhead = args.gflops * 1e9, args.latency * 1e-6, args.bandwidth * 1e9, args.overhead

    def computing(self, pairs):
        """Two products of head_dim for each pair of a query and a key, in each head."""
        return 4 * self.heads * self.head_dim * pairs / self.flops

    def sending(self, tokens, heads, messages=1):
        return messages * self.latency + heads * tokens * self.head_dim * self.bytes / self.bandwidth

    def one(self, n, causal):
        return self.computing(n * n / (2 if causal else 1))

    def block(self, own, causal):
        """A rank's queries against as many keys: all of them, or two pieces of half that; each costs some keys more than it has."""
        return self.computing(own * (own + self.overhead) if not causal else own * (own + 2 * self.overhead) / 2)

    def ring(self, n, ranks, causal):
        """A block for each rank, of equal work (causal: zigzag); keys and values of the next come meanwhile."""
        own = n / ranks
        block = self.block(own, causal)
        return block + (ranks - 1) * max(block, self.sending(own, 2 * self.kv_heads))

    def exchange(self, n, ranks, causal):
        """Queries, keys, values there and the result back, all but a rank's own part; then its heads over the whole. None: no head is left."""
        if self.heads % ranks:
            return None
        kv_heads = max(self.kv_heads, ranks)  # of a group that is split, several ranks get the same
        away = (ranks - 1) / ranks
        return self.one(n, causal) / ranks + self.sending(n / ranks * away, 2 * self.heads + 2 * kv_heads, 2 * (ranks - 1))

    def efficiency(self, seconds, n, ranks, causal):
        return None if seconds is None else self.one(n, causal) / (ranks * seconds)

    def balance(self, causal):
        """Tokens of a rank at which computing a block takes as long as its message."""
        square = self.computing(1 / (2 if causal else 1))  # square x^2 + linear x = latency
        linear = self.computing(self.overhead) - self.sending(1, 2 * self.kv_heads, 0)
        return (-linear + (linear * linear + 4 * square * self.latency) ** 0.5) / (2 * square)


def tables(model):
    for causal in (False, True):
        print("causal, zigzag shards" if causal else "full")
        print(f"  {'ranks':18}" + "".join(f"{ranks:>8}" for ranks in RANKS))
        for name, call in (("ring", model.ring), ("exchange", model.exchange)):
            for length, n in LENGTHS.items():
                shares = [model.efficiency(call(n, ranks, causal), n, ranks, causal) for ranks in RANKS]
                print(f"  {name:10}{length:>8}" + "".join(f"{'-' if share is None else f'{100 * share:.0f} %':>8}" for share in shares))
        print(f"  the wire binds the ring below {model.balance(causal):,.0f} tokens a rank\n")


def compare(model, text, within):
    """Whether RANKS,TOKENS,SECONDS, causal, is what the model says."""
    ranks, n, seconds = (kind(part) for kind, part in zip((int, int, float), text.split(",")))
    said = model.ring(n, ranks, causal=True)
    print(f"{ranks} ranks, {n:,} tokens, causal: measured {seconds:.4f} s, the model says {said:.4f} s ({100 * (seconds / said - 1):+.0f} %)")
    return abs(seconds / said - 1) <= within


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gflops", type=float, required=True, help="of a rank, in attention: 1e9 FLOP/s")
    parser.add_argument("--latency", type=float, required=True, help="of a message between two ranks: microseconds")
    parser.add_argument("--bandwidth", type=float, required=True, help="between two ranks, one way: 1e9 bytes/s")
    parser.add_argument("--heads", type=int, default=32, help="query heads (32)")
    parser.add_argument("--kv-heads", type=int, default=8, help="heads of keys and values (8)")
    parser.add_argument("--head-dim", type=int, default=128, help="(128)")
    parser.add_argument("--bytes", type=int, default=4, help="of a number (4)")
    parser.add_argument("--overhead", type=float, default=0, help="keys that a block costs more than it has (0)")
    parser.add_argument("--measured", metavar="RANKS,TOKENS,SECONDS", action="append", default=[], help="a causal call of ring_attention_into")
    parser.add_argument("--within", type=float, default=0.25, help="how far, as a share, a measurement may be from the model (0.25)")
    args = parser.parse_args()
    model = Model(args)
    print(f"{args.heads} / {args.kv_heads} heads of {args.head_dim}, {args.bytes} bytes; {args.gflops:g} GFLOP/s a rank, "
          f"{args.latency:g} us, {args.bandwidth:g} GB/s\n")
    tables(model)
    return 0 if all([compare(model, text, args.within) for text in args.measured]) else 1


if __name__ == "__main__":
    sys.exit(main())
