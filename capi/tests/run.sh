#!/usr/bin/env bash
# libtagore as a program sees it: installed, linked shared and static from C and C++, under the
# address sanitizer, with the command's bytes and answers. Needs C and C++ compilers and pkg-config;
# without one it says so and does nothing. Python, Go, CMake and valgrind are used if they are there.
# TAGORE names a program and BUILT the folder of libraries to use in place of new ones.
set -euo pipefail
cd "$(dirname "$0")/../.."

cc=${CC:-cc} cxx=${CXX:-c++}
for tool in "$cc" "$cxx" pkg-config; do
  if ! command -v "$tool" >/dev/null; then
    echo "skipped: no $tool on this machine"
    exit 0
  fi
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix
[ -n "${TAGORE:-}" ] || cargo build --release --locked --quiet
tagore=${TAGORE:-$PWD/target/release/tagore}
built=(${BUILT:+--built "$BUILT"})
cargo xtask install --prefix "$prefix" "${built[@]}"
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig LD_LIBRARY_PATH=$prefix/lib
# A wrong size must be refused by the library, not by the sanitizer.
export ASAN_OPTIONS=allocator_may_return_null=1

echo "-- installed files"
# A packager's root, and folders of a distribution.
DESTDIR=$work/staged cargo xtask install --prefix /usr --libdir lib/triple --includedir include/tagore "${built[@]}" >/dev/null
test -e "$work/staged/usr/lib/triple/libtagore.so"
grep -qx 'libdir=${prefix}/lib/triple' "$work/staged/usr/lib/triple/pkgconfig/tagore.pc"
test ! -e "$work/staged$work"
# The header declares all that is exported, and nothing else is.
grep -oE '^(const char \*|[a-z0-9_]+ )tagore_[a-z0-9_]+\(' capi/tagore.h | grep -oE 'tagore_[a-z0-9_]+\($' | tr -d '(' | sort > "$work/declared"
nm -D --defined-only "$prefix/lib/libtagore.so" | awk '{ print $3 }' | sort > "$work/exported"
diff "$work/declared" "$work/exported"
readelf -d "$prefix/lib/libtagore.so" | grep -q 'soname: \[libtagore.so.0\]'

# compile LANGUAGE FLAGS LINK SOURCE PROGRAM: with warnings as errors. LINK is shared or static.
warn="-Wall -Wextra -Werror -pedantic"
compile() {
  local compiler=$cc flags libraries
  [ "$1" = c11 ] && flags="-std=c11 -x c" || { compiler=$cxx flags="-std=c++17 -x c++"; }
  libraries=$(pkg-config --libs tagore)
  [ "$3" = shared ] || libraries=$(pkg-config --static --libs tagore | sed 's/-ltagore\b/-l:libtagore.a/')
  # shellcheck disable=SC2046,SC2086
  "$compiler" $flags $warn $2 $(pkg-config --cflags tagore) "$4" -x none $libraries -pthread -o "$5"
}
sanitize="-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all"

echo "-- the sanitizer finds a leak"
cat > "$work/leak.c" <<'C'
#include <tagore.h>
int main(void) {
    tagore_builder *builder;
    return tagore_builder_create("nsg", &builder) != TAGORE_OK || (builder = NULL);
}
C
compile c11 "$sanitize" shared "$work/leak.c" "$work/leak"
if "$work/leak" 2>/dev/null; then
  echo "a handle that is not freed must be a leak" >&2
  exit 1
fi

echo "-- wrong calls"
for way in "c11 shared" "c11 static" "c++17 shared" "c++17 static"; do
  read -r language link <<< "$way"
  compile "$language" "$sanitize" "$link" capi/tests/misuse.c "$work/misuse"
  mkdir "$work/misused"
  "$work/misuse" "$work/misused"
  rm -r "$work/misused"
done

echo "-- updates"
compile c11 "$sanitize" shared capi/tests/update.c "$work/update"
"$work/update" "$work"
compile c++17 "$sanitize" static capi/tests/update.c "$work/update"
"$work/update" "$work"

echo "-- live indexes"
for way in "c11 shared" "c++17 static"; do
  read -r language link <<< "$way"
  compile "$language" "$sanitize" "$link" capi/tests/live.c "$work/live"
  mkdir "$work/lived"
  "$work/live" "$work/lived"
  rm -r "$work/lived"
done

echo "-- too little memory"
# Without the sanitizer, whose memory no limit allows.
compile c11 "-O1 -D_GNU_SOURCE" shared capi/tests/memory.c "$work/memory"
mkdir "$work/limited"
"$work/memory" "$work/limited"
rm -r "$work/limited"

echo "-- examples, and the C++ wrapper"
compile c++17 "$sanitize" shared capi/tests/wrapper.cpp "$work/wrapper"
"$work/wrapper" "$work"
for link in shared static; do
  for flags in "-O2" "$sanitize"; do
    compile c11 "$flags" $link capi/examples/build_and_search.c "$work/example"
    "$work/example" "$work/example.tagore" 2>/dev/null
    compile c11 "$flags" $link capi/examples/store.c "$work/store"
    "$work/store" "$work"
    compile c++17 "$flags" $link capi/examples/build_and_search.cpp "$work/example-cpp"
    "$work/example-cpp" "$work/example.hnswlib"
  done
done
# The command reads what they wrote.
"$tagore" inspect "$work/example.tagore" > /dev/null

echo "-- the command's bytes and answers"
cd "$work"
"$tagore" synth -o base.fbin --n 6000 --dim 20 2>/dev/null
"$tagore" synth -o query.fbin --n 6000 --dim 20 --queries 200 2>/dev/null
cd - >/dev/null
compile c11 "$sanitize" shared capi/tests/answers.c "$work/answers-c11"
compile c++17 "$sanitize" static capi/tests/answers.c "$work/answers-c++17"

# Builds and searches by the command in $work/cli what `answers` does in $work/c.
by_command() {
  local kind=$1 metric=$2 settings="--metric $2 --knn 48 --seed 5 --device cpu"
  # shellcheck disable=SC2086
  "$tagore" build -i base.fbin -o cli/x.tagore --kind "$kind" $settings --no-report
  # shellcheck disable=SC2086
  "$tagore" build -i base.fbin -o cli/clusters.tagore --kind "$kind" $settings --no-report --cluster-size 2000
  # shellcheck disable=SC2086
  "$tagore" knn -i base.fbin -o cli/knn.bin $settings
  "$tagore" search --index cli/x.tagore --base base.fbin --queries query.fbin -k 10 --beam 64 --device cpu -o cli/found.bin
  "$tagore" groundtruth --base base.fbin --queries query.fbin -k 10 --metric "$metric" --device cpu -o cli/truth.bin
  for format in hnswlib csr nsg; do "$tagore" convert cli/x.tagore "cli/x.$format" --base base.fbin; done
}
for case in "nsg l2 c11" "cagra ip c++17" "vamana cosine c11" "alpha-cng l2 c++17"; do
  read -r kind metric language <<< "$case"
  rm -rf "$work/c" "$work/cli"
  mkdir "$work/c" "$work/cli"
  "$work/answers-$language" "$work" "$kind" "$metric"
  (cd "$work" && by_command "$kind" "$metric") 2>/dev/null
  for way in file memory strided callback spooled limitless; do cmp "$work/cli/x.tagore" "$work/c/$way.tagore"; done
  cmp "$work/cli/found.bin" "$work/c/found-one.bin"
  for file in clusters.tagore knn.bin found.bin truth.bin x.hnswlib x.indices.npy x.indptr.npy x.nsg; do
    cmp "$work/cli/$file" "$work/c/$file"
  done
  echo "$kind, $metric: the same bytes from a file, memory and callbacks; the same answers"
done

echo "-- programs of docs/how-to-c.md"
program() { awk -v fence="\`\`\`$1" '$0 == fence { inside = 1; next } /^```/ { inside = 0 } inside' docs/how-to-c.md; }
program c > "$work/how.c"
program cpp > "$work/how.cpp"
program python > "$work/how.py"
compile c11 "$sanitize" shared "$work/how.c" "$work/how-c"
compile c++17 "$sanitize" shared "$work/how.cpp" "$work/how-cpp"
made="c cpp"
cd "$work"
./how-c
./how-cpp
"$tagore" build -i base.fbin -o command.tagore --kind nsg --degree 32 --no-report 2>/dev/null
if command -v python3 >/dev/null; then
  python3 how.py
  made+=" python"
fi
if command -v go >/dev/null; then
  mkdir how-go
  (cd - >/dev/null && program go) > how-go/main.go
  (cd how-go && CC=$cc GOFLAGS=-mod=mod GOCACHE=$work/go-cache go build -o ../how-go-program main.go)
  ./how-go-program
  made+=" go"
fi
for language in $made; do cmp command.tagore "$language.tagore"; done
echo "the command's index from: $made"
cd - >/dev/null

if command -v cmake >/dev/null; then
  echo "-- CMake"
  mkdir "$work/cmake"
  cat > "$work/cmake/CMakeLists.txt" <<CMAKE
cmake_minimum_required(VERSION 3.16)
project(example C CXX)
find_package(tagore 0.1 REQUIRED)
add_executable(shared $PWD/capi/examples/build_and_search.c)
target_link_libraries(shared tagore::tagore)
add_executable(fixed $PWD/capi/examples/build_and_search.cpp)
set_target_properties(fixed PROPERTIES CXX_STANDARD 17)
target_link_libraries(fixed tagore::tagore-static)
CMAKE
  cmake -S "$work/cmake" -B "$work/cmake/made" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" >/dev/null
  cmake --build "$work/cmake/made" >/dev/null
  "$work/cmake/made/shared" "$work/example.tagore" 2>/dev/null
  "$work/cmake/made/fixed" "$work/example.hnswlib"
fi

if command -v valgrind >/dev/null; then
  echo "-- valgrind, which sees inside the library"
  compile c++17 "-O1 -g" shared capi/tests/wrapper.cpp "$work/wrapper"
  compile c11 "-O1 -g" shared capi/tests/misuse.c "$work/misuse"
  compile c11 "-O1 -g" shared capi/tests/update.c "$work/update"
  compile c11 "-O1 -g" shared capi/tests/live.c "$work/live"
  mkdir "$work/misused" "$work/lived"
  # One for each core: valgrind takes one thread at a time. The longest first.
  printf '%s\n' "$work/live" "$work/lived" "$work/wrapper" "$work" "$work/update" "$work" "$work/misuse" "$work/misused" |
    xargs -d '\n' -n 2 -P "$(nproc)" valgrind --quiet --error-exitcode=9 --leak-check=full --show-leak-kinds=definite \
      --errors-for-leak-kinds=definite
fi
