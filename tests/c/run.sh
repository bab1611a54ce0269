#!/bin/sh
# Build and run one C test by hand:  tests/c/run.sh tests/c/test_x.c [plain|asan|tsan] [arguments]
# (pytest does the same for every tests/c/test_*.c, see conftest.py)
set -e
cd "$(dirname "$0")/../.."
src=$1; mode=${2:-plain}; shift; [ $# -gt 0 ] && shift
out=build/c/$mode; mkdir -p "$out/gen"
case $mode in
  plain) flags="-O2" ;;
  asan) flags="-O1 -fsanitize=address,undefined -fno-sanitize-recover=all" ;;
  tsan) flags="-O1 -fsanitize=thread" ;;
esac
[ -f core/gen_tables.py ] && python3 core/gen_tables.py "$out/gen"
bin=$out/$(basename "$src" .c)
${CC:-gcc} -std=c11 -D_GNU_SOURCE -g $flags -Wall -Wextra -Werror -Icore/include -Icore/src -Itests/c \
  -o "$bin" "$src" $(find core/src "$out/gen" -name '*.c') -pthread -ldl -lm
exec "$bin" "$@"
