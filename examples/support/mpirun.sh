#!/bin/sh
# mpirun.sh MPIRUN RANKS PROGRAM [ARG...]: starts ranks on this machine. Open MPI is told that there may be more of them than cores, that they
# are not bound to one each, which threads would share, to give way while they wait, and to run as a container's root.
set -eu
mpirun=$1
ranks=$2
shift 2
options=
if "$mpirun" --version 2>/dev/null | grep -Eq 'Open MPI|OpenRTE'; then
  options="--oversubscribe --bind-to none --mca mpi_yield_when_idle 1"
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
# shellcheck disable=SC2086
exec "$mpirun" $options -n "$ranks" "$@"
