#!/bin/sh
# must_fail.sh SENTENCE COMMAND...: the command must fail, by itself and not by a signal, and say the sentence.
sentence=$1
shift
messages=$("$@" 2>&1)
status=$?
if [ $status = 0 ] || [ $status -ge 126 ]; then
  echo "Exit status $status of: $*"
  exit 1
fi
printf '%s\n' "$messages" | grep -qF "$sentence" || { echo "No '$sentence' in:"; printf '%s\n' "$messages"; exit 1; }
