#!/bin/sh
# usage: interrupted.sh PROGRAM    Ctrl-C keeps what was learned, and the same command goes on from there.
set -eu
checkpoint=$(mktemp -d)/interrupted.checkpoint
trap 'rm -r "$(dirname "$checkpoint")"' EXIT
"$1" --alice --steps 1000000 --checkpoint "$checkpoint" >"$checkpoint.out" 2>/dev/null &
until grep -q 'Ctrl-C ends' "$checkpoint.out"; do
  kill -0 $!
  sleep 0.1
done
sleep 0.5
kill -INT $!
wait $!
step=$(sed -n 's/Stopped after step \([0-9]*\).*/\1/p' "$checkpoint.out")
echo "stopped after step $step"
"$1" --alice --steps 1 --checkpoint "$checkpoint" | grep "Going on from step $step "
