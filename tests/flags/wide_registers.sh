#!/bin/sh
# wide_registers.sh PROGRAM: a program built with no -march holds 256- and 512-bit instructions in the kernels' own namespaces only.
objdump -d -C --no-show-raw-insn "$1" | awk '
  /^[0-9a-f]+ <.*>:$/ { function_name = $0; sub(/^[0-9a-f]+ /, "", function_name); ours = /detail::avx2::|detail::avx512(_bf16)?::/ }
  /%[yz]mm/ {
    if (ours) { inside++; next }
    if (!(function_name in seen)) print "wide registers outside the kernels: " function_name $0
    seen[function_name]; outside++
  }
  END {
    printf "%d wide instructions in the kernels, %d elsewhere\n", inside, outside
    exit outside > 0 || inside == 0
  }'
