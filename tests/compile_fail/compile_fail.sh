#!/bin/sh
# compile_fail.sh FILE COMPILER FLAGS...: FILE must not compile, and the compiler must say the sentence of the file's first line.
file=$1
shift
sentence=$(sed -n '1s|^// wants: ||p' "$file")
[ -n "$sentence" ] || { echo "$file: the first line names no sentence"; exit 1; }
if messages=$("$@" -fsyntax-only "$file" 2>&1); then
  echo "$file compiles"
  exit 1
fi
printf '%s\n' "$messages" | grep -qF "$sentence" || { echo "$file: no '$sentence' in:"; printf '%s\n' "$messages"; exit 1; }
